"""A cell's parameters to arrays and back."""

import numpy as np
import pytest
from mindspore import nn

from dimred.errors import CheckpointError
from dimred.vectors.parameters import from_arrays, to_arrays


def test_arrays_are_put_back_completely_or_not_at_all() -> None:
    network = nn.Dense(3, 2)
    before = to_arrays(network.get_parameters())
    changed = {name: value + 1 for name, value in before.items()}
    with pytest.raises(CheckpointError, match="has no 'bias'"):
        from_arrays(network.get_parameters(), {"weight": changed["weight"]}, "it")
    with pytest.raises(CheckpointError, match=r"'bias' with the shape \(3,\), the network \(2,\)"):
        from_arrays(network.get_parameters(), changed | {"bias": np.zeros(3, np.float32)}, "it")
    for name, value in to_arrays(network.get_parameters()).items():
        np.testing.assert_array_equal(value, before[name])
    from_arrays(network.get_parameters(), changed | {"another": np.zeros(1)}, "it")
    for name, value in to_arrays(network.get_parameters()).items():
        np.testing.assert_array_equal(value, changed[name])


def test_the_arrays_are_copies() -> None:
    network = nn.Dense(3, 2)
    arrays = to_arrays(network.get_parameters())
    arrays["weight"] += 1
    assert not np.array_equal(network.weight.asnumpy(), arrays["weight"])
