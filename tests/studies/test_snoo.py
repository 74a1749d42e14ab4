"""SNOO makes the steps of its NumPy twin."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from tests.studies import snoo


def test_snoo_makes_the_steps_of_algorithm_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snoo, "EVERY", 3)
    ms.set_context(mode=ms.GRAPH_MODE)
    weight = Parameter(Tensor([1.0, 2.0, -3.0], ms.float32), name="weight")
    rates = [0.1 / step for step in range(1, 8)]  # one more update would be one too many
    optimizer = snoo.Snoo([weight], rates, weight_decay=0.01)
    w = slow = weight.asnumpy().astype(np.float64)
    moment = outer = np.zeros(3)
    for step in range(1, 8):
        gradient = np.sin(np.arange(3) + step)
        optimizer((Tensor(gradient.astype(np.float32)),))
        moment = 0.9 * moment + gradient + 0.01 * w
        w = w - rates[step - 1] * moment
        if step % 3 == 0:
            gone = slow - w
            outer = snoo.MOMENTUM * outer + gone
            w = slow = slow - snoo.RATE * (snoo.MOMENTUM * outer + gone)
        np.testing.assert_allclose(weight.asnumpy(), w, atol=1e-6)
