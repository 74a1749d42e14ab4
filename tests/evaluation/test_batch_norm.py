"""Re-estimated BatchNorm statistics equal those of plain NumPy."""

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from dimred.errors import ConfigError
from dimred.evaluation.batch_norm import reestimate_batch_norm
from dimred.train_step.network_state import moving_statistics


@pytest.fixture(autouse=True)
def _graph_mode() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(5)
    return [
        (Tensor(rng.normal(1 + index, 2.0, (8, 3, 4, 4)).astype(np.float32)), Tensor(np.zeros(8, np.int32)))
        for index in range(count)
    ]


def test_the_statistics_are_the_plain_average_over_the_batches_whatever_they_were() -> None:
    network, drawn = nn.SequentialCell(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3, momentum=0.7)), batches(4)
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


def test_a_network_with_batch_norm_needs_batches_and_one_without_none() -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        reestimate_batch_norm(nn.BatchNorm2d(3), [])
    assert reestimate_batch_norm(nn.Dense(3, 2), []) == 0


class Drops(nn.Cell):
    """Dropout by a cell and by a function, before a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.norm = nn.Dropout(p=0.5), nn.BatchNorm2d(3)

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(self.dropout(ops.dropout(x, p=0.5, training=self.training)))


def test_statistics_are_those_without_dropout_and_training_goes_on_with_it() -> None:
    network = nn.SequentialCell(Drops()).set_train(True)
    images = batches(1)[0][0]
    network(images)  # its graph, with dropout, must not be taken for another one
    reestimate_batch_norm(network, batches(1))
    x = images.asnumpy()
    np.testing.assert_allclose(network[0].norm.moving_mean.asnumpy(), x.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(network[0].norm.moving_variance.asnumpy(), x.var((0, 2, 3), ddof=1), rtol=1e-3)
    assert all(cell.training for _, cell in network.cells_and_names())
    assert np.any(network(images).asnumpy() != network(images).asnumpy())


@pytest.mark.parametrize("options", [{"use_batch_statistics": False}, {"momentum": 1.0}], ids=str)
def test_statistics_that_training_leaves_alone_stay(options: dict[str, Any]) -> None:
    network = nn.SequentialCell(nn.BatchNorm2d(3, **options), nn.BatchNorm2d(3))
    assert reestimate_batch_norm(network, batches(2)) == 2
    assert network[0].moving_mean.asnumpy().tolist() == [0, 0, 0]
    assert network[0].moving_variance.asnumpy().tolist() == [1, 1, 1]
    assert np.all(network[1].moving_variance.asnumpy() != 1)


def test_three_dimensions_have_statistics_too() -> None:
    network = nn.SequentialCell(nn.BatchNorm3d(3))
    x = np.random.default_rng(5).normal(2.0, 3.0, (8, 3, 2, 4, 4)).astype(np.float32)
    assert reestimate_batch_norm(network, [(Tensor(x), Tensor(0))]) == 1
    mean, variance = moving_statistics(network)
    np.testing.assert_allclose(mean.asnumpy(), x.mean((0, 2, 3, 4)), rtol=1e-5)
    np.testing.assert_allclose(variance.asnumpy(), x.var((0, 2, 3, 4), ddof=1), rtol=1e-3)


def test_the_batch_norm_of_mint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'0' of the network is a mint\.nn\.BatchNorm2d.*; use nn\.BatchNorm2d"):
        reestimate_batch_norm(nn.SequentialCell(mint.nn.BatchNorm2d(3), nn.ReLU()), batches(1))


class Several(nn.Cell):
    """A BatchNorm that a pass runs n times, on x, 2 x, ..., and one that it does not run."""

    def __init__(self, n_runs: int, momentum: float):
        super().__init__()
        self.n_runs, self.norm, self.idle = n_runs, nn.BatchNorm2d(3, momentum=momentum), nn.BatchNorm2d(3)

    def construct(self, x: Tensor) -> Tensor:
        total = self.norm(x)
        for factor in range(2, self.n_runs + 1):
            total = total + self.norm(factor * x)
        return total


@pytest.mark.parametrize(("n_runs", "momentum"), [(1, 0.9), (2, 0.9), (3, 0.99), (2, 0.0)])
@pytest.mark.parametrize("scale", [1e-3, 1e5])
def test_a_layer_that_runs_several_times_weighs_its_runs_as_training_does(
    n_runs: int, momentum: float, scale: float
) -> None:
    network = Several(n_runs, momentum)
    network.idle.moving_variance.set_data(Tensor(np.full(3, 7, np.float32)))
    drawn = [(images * scale, labels) for images, labels in batches(2)]
    reestimate_batch_norm(network, drawn)
    weights = momentum ** np.arange(n_runs)[::-1]  # a later run decays what an earlier one left
    factors = np.arange(1, n_runs + 1)
    pixels = [images.asnumpy().astype(np.float64) for images, _ in drawn]
    mean = np.mean([x.mean((0, 2, 3)) for x in pixels], axis=0) * np.average(factors, weights=weights)
    variance = np.mean([x.var((0, 2, 3), ddof=1) for x in pixels], axis=0) * np.average(factors**2, weights=weights)
    np.testing.assert_allclose(network.norm.moving_mean.asnumpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(network.norm.moving_variance.asnumpy(), variance, rtol=1e-3)
    assert network.idle.moving_variance.asnumpy().tolist() == [7, 7, 7]
