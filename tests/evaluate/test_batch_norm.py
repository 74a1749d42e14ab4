"""Re-estimated BatchNorm statistics against plain NumPy."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.errors import ConfigError
from dimred.evaluate.batch_norm import reestimate_batch_norm


@pytest.fixture
def network() -> nn.Cell:
    ms.set_context(mode=ms.GRAPH_MODE)
    return nn.SequentialCell(nn.BatchNorm2d(3, momentum=0.9), nn.ReLU(), nn.BatchNorm2d(3, momentum=0.7))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(5)
    return [
        (Tensor(rng.normal(1 + index, 2.0, (8, 3, 4, 4)).astype(np.float32)), Tensor(np.zeros(8, np.int32)))
        for index in range(count)
    ]


def test_the_statistics_are_the_plain_average_over_the_batches_whatever_they_were(network: nn.Cell) -> None:
    drawn = batches(4)
    network[0].moving_mean.set_data(Tensor(np.full(3, 1e6, np.float32)))
    network[2].moving_variance.set_data(Tensor(np.full(3, np.nan, np.float32)))
    network.set_train(False)
    assert reestimate_batch_norm(network, drawn) == 4
    assert not network.training
    means, variances, means_2 = [], [], []
    for images, _ in drawn:
        x = images.asnumpy().astype(np.float64)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)
        hidden = np.maximum((x - mean[:, None, None]) / np.sqrt(x.var((0, 2, 3))[:, None, None] + 1e-5), 0)
        means.append(mean)
        variances.append(variance)
        means_2.append(hidden.mean((0, 2, 3)))
    np.testing.assert_allclose(network[0].moving_mean.asnumpy(), np.mean(means, 0), rtol=1e-5)
    np.testing.assert_allclose(network[0].moving_variance.asnumpy(), np.mean(variances, 0), rtol=1e-3)
    np.testing.assert_allclose(network[2].moving_mean.asnumpy(), np.mean(means_2, 0), rtol=1e-4)


def test_no_batches_is_an_error(network: nn.Cell) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        reestimate_batch_norm(network, [])


def test_a_network_without_batch_norm_needs_no_pass() -> None:
    assert reestimate_batch_norm(nn.SequentialCell(nn.Dense(3, 2)), []) == 0
