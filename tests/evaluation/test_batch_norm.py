"""Re-estimated BatchNorm statistics are mean and population variance of all elements of all batches, as in NumPy.

So a batch weighs as much as it has elements, and the runs of a layer in a pass all count alike: MindSpore's own moving
statistics have the unbiased variance of each batch, and decay the earlier runs.
"""

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from dimred.errors import ConfigError
from dimred.evaluation.batch_norm import reestimate_batch_norm
from dimred.train_step.statistics import moving_statistics
from tests.oracles.moments import mean_and_variance


@pytest.fixture
def graphs() -> None:
    """Set graph mode, in which the programs estimate."""
    ms.set_context(mode=ms.GRAPH_MODE)


def check(norm: nn.Cell, parts: list[np.ndarray]) -> None:
    mean, variance = mean_and_variance(parts)
    np.testing.assert_allclose(norm.moving_mean.asnumpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(norm.moving_variance.asnumpy(), variance, rtol=1e-5)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(5)
    return [
        (Tensor(rng.normal(1 + index, 2.0, (8, 3, 4, 4)).astype(np.float32)), Tensor(np.zeros(8, np.int32)))
        for index in range(count)
    ]


def test_the_statistics_are_those_of_all_batches_whatever_they_were(graphs: None) -> None:
    network, drawn = nn.SequentialCell(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3, momentum=0.7)), batches(4)
    network[0].moving_mean.set_data(Tensor(np.full(3, 1e6, np.float32)))
    network[2].moving_variance.set_data(Tensor(np.full(3, np.nan, np.float32)))
    network.set_train(False)
    assert reestimate_batch_norm(network, drawn) == 4
    assert not network.training
    pixels, hidden = [], []
    for images, _ in drawn:
        x = images.asnumpy().astype(np.float64)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        pixels.append(x)
        hidden.append(np.maximum((x - mean[:, None, None]) / np.sqrt(variance[:, None, None] + 1e-5), 0))
    check(network[0], pixels)
    check(network[2], hidden)


def test_a_network_with_batch_norm_needs_batches_and_one_without_none(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        reestimate_batch_norm(nn.BatchNorm2d(3), [])
    assert reestimate_batch_norm(nn.Dense(3, 2), []) == 0
    assert not caplog.messages
    own = nn.Dense(3, 2)
    own.moving_variance = Parameter(np.ones(2, np.float32), requires_grad=False)
    assert reestimate_batch_norm(own, []) == 0
    assert "no BatchNorm layer of MindSpore that would move them" in caplog.text


class Drops(nn.Cell):
    """Dropout by a cell and by a function, before a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.norm = nn.Dropout(p=0.5), nn.BatchNorm2d(3)

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(self.dropout(ops.dropout(x, p=0.5, training=self.training)))


def test_statistics_are_those_without_dropout_and_training_goes_on_with_it(graphs: None) -> None:
    network = nn.SequentialCell(Drops()).set_train(True)
    images = batches(1)[0][0]
    network(images)  # its graph, with dropout, must not be taken for another one
    reestimate_batch_norm(network, batches(1))
    x = images.asnumpy()
    check(network[0].norm, [x])
    assert all(cell.training for _, cell in network.cells_and_names())
    assert np.any(network(images).asnumpy() != network(images).asnumpy())


@pytest.mark.parametrize("options", [{"use_batch_statistics": False}, {"momentum": 1.0}], ids=str)
def test_statistics_that_training_leaves_alone_stay(options: dict[str, Any]) -> None:
    network = nn.SequentialCell(nn.BatchNorm2d(3, **options), nn.BatchNorm2d(3))
    assert reestimate_batch_norm(network, batches(2)) == 2
    assert network[0].moving_mean.asnumpy().tolist() == [0, 0, 0]
    assert network[0].moving_variance.asnumpy().tolist() == [1, 1, 1]
    assert np.all(network[1].moving_variance.asnumpy() != 1)


class Added(nn.Cell):
    """A network with two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + 2 * y)


def test_all_but_the_last_part_of_a_batch_are_inputs() -> None:
    network, ((x, labels), (y, _)) = Added(), batches(2)
    reestimate_batch_norm(network, [(x, y, labels)])
    check(network.norm, [x.asnumpy() + 2 * y.asnumpy()])


def test_the_rounding_of_a_mean_far_from_0_is_in_neither_the_mean_nor_the_variance(graphs: None) -> None:
    """The mean of so many float32 numbers is off by an eighth of their standard deviation."""
    network = nn.SequentialCell(nn.BatchNorm1d(1))
    x = np.random.default_rng(5).normal(1000, 1e-3, (200_001, 1)).astype(np.float32)
    reestimate_batch_norm(network, [(Tensor(x), Tensor(0))])
    mean, variance = mean_and_variance([x.astype(np.float64)])
    np.testing.assert_allclose(network[0].moving_mean.asnumpy(), mean, rtol=0, atol=5e-5)
    np.testing.assert_allclose(network[0].moving_variance.asnumpy(), variance, rtol=2e-3)


def test_three_dimensions_have_statistics_too() -> None:
    network = nn.SequentialCell(nn.BatchNorm3d(3))
    x = np.random.default_rng(5).normal(2.0, 3.0, (8, 3, 2, 4, 4)).astype(np.float32)
    assert reestimate_batch_norm(network, [(Tensor(x), Tensor(0))]) == 1
    mean, variance = moving_statistics(network)
    np.testing.assert_allclose(mean.asnumpy(), x.mean((0, 2, 3, 4)), rtol=1e-5)
    np.testing.assert_allclose(variance.asnumpy(), x.var((0, 2, 3, 4)), rtol=1e-5)


def test_the_batch_norm_of_mint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the network's cell '0' is a mint\.nn\.BatchNorm2d.*; use nn\.BatchNorm2d"):
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


@pytest.mark.parametrize(("n_runs", "momentum", "scale"), [(2, 0.9, 1e5), (3, 0.99, 1e-3), (2, 0.0, 1e-3)])
def test_a_layer_that_runs_several_times_sees_the_elements_of_all_runs(
    n_runs: int, momentum: float, scale: float, graphs: None
) -> None:
    network = Several(n_runs, momentum)
    network.idle.moving_variance.set_data(Tensor(np.full(3, 7, np.float32)))
    drawn = [(images * scale, labels) for images, labels in batches(2)]
    reestimate_batch_norm(network, drawn)
    pixels = [images.asnumpy().astype(np.float64) for images, _ in drawn]
    check(network.norm, [factor * x for x in pixels for factor in range(1, n_runs + 1)])
    assert network.idle.moving_variance.asnumpy().tolist() == [7, 7, 7]


def rows(*counts: int, shape: tuple[int, ...] = (3,)) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(6)
    parts = [rng.normal(3 * index, 2.0, (count, *shape)) for index, count in enumerate(counts)]
    return [(Tensor(part.astype(np.float32)), Tensor(0)) for part in parts]


@pytest.mark.parametrize("counts", [(64, 2, 2, 1), (1,), (1, 1)], ids=str)
def test_a_batch_weighs_as_much_as_it_has_rows_and_may_be_one_row(counts: tuple[int, ...]) -> None:
    network, drawn = nn.BatchNorm1d(3), rows(*counts)
    network.set_train(True)
    assert reestimate_batch_norm(network, drawn) == len(counts)
    x = np.concatenate([part.asnumpy() for part, _ in drawn]).astype(np.float64)
    np.testing.assert_allclose(network.moving_mean.asnumpy(), x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(network.moving_variance.asnumpy(), x.var(0), rtol=1e-5)
    assert network.training


def test_batches_of_several_image_sizes_weigh_by_their_pixels_in_a_shared_layer() -> None:
    norm = nn.BatchNorm2d(3)
    network = nn.SequentialCell(norm, nn.MaxPool2d(2, 2), norm)
    names = [value.name for value in network.get_parameters()]
    drawn = rows(4, shape=(3, 8, 8)) + rows(1, 2, shape=(3, 2, 2))
    reestimate_batch_norm(network, drawn)
    parts = []
    for images, _ in drawn:
        x = images.asnumpy().astype(np.float64)
        mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + 1e-5)
        n, c, height, width = x.shape
        parts += [x, scaled.reshape(n, c, height // 2, 2, width // 2, 2).max((3, 5))]
    check(norm, parts)
    assert [network[0], network[2]] == [norm, norm]
    assert [value.name for value in network.get_parameters()] == names


def test_a_pass_that_fails_leaves_the_network_as_it_was() -> None:
    network = nn.SequentialCell(nn.BatchNorm2d(3))
    norm = network[0]

    def broken() -> Any:
        yield batches(1)[0]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        reestimate_batch_norm(network, broken())
    assert network[0] is norm
    assert norm.moving_mean.asnumpy().tolist() == [0, 0, 0]
    assert norm.moving_variance.asnumpy().tolist() == [1, 1, 1]


def test_a_second_estimate_uses_the_graph_of_the_first_and_leaves_that_of_training(graphs: None) -> None:
    network, drawn = nn.SequentialCell(nn.BatchNorm2d(3), nn.ReLU()).set_train(True), batches(2)
    network(drawn[0][0])
    reestimate_batch_norm(network, drawn)
    n_graphs = len(network.compile_cache)
    reestimate_batch_norm(network, drawn[1:])
    check(network[0], [drawn[1][0].asnumpy()])
    before = network[0].moving_mean.asnumpy().copy()
    network(drawn[0][0])
    assert len(network.compile_cache) == n_graphs == 2
    moved = 0.9 * before + 0.1 * drawn[0][0].asnumpy().mean((0, 2, 3))
    np.testing.assert_allclose(network[0].moving_mean.asnumpy(), moved, rtol=1e-5)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, 1e25], ids=str)
def test_statistics_that_are_not_finite_are_not_passed_over_in_silence(
    spoilt: float, caplog: pytest.LogCaptureFixture
) -> None:
    network, drawn = nn.BatchNorm2d(3), batches(2)
    reestimate_batch_norm(network, drawn)
    assert caplog.messages == []
    images = drawn[1][0].asnumpy()
    images[0, 0, 0, 0] = spoilt
    reestimate_batch_norm(network, [drawn[0], (Tensor(images), drawn[1][1])])
    assert caplog.messages == [
        "re-estimated BatchNorm statistics are not finite: a weight or an input is not, or is too large"
    ]


def test_batches_may_be_of_numpy_and_what_is_no_batch_is_refused() -> None:
    network, drawn = nn.BatchNorm2d(3), batches(2)
    arrays = [tuple(value.asnumpy() for value in batch) for batch in drawn]
    assert reestimate_batch_norm(network, arrays) == 2
    check(network, [images for images, _ in arrays])
    for batch in (drawn[0][0], drawn[0][:1], {"x": drawn[0][0], "y": drawn[0][1]}):
        with pytest.raises(ConfigError, match="each must be a tuple of the inputs and, last, the labels"):
            reestimate_batch_norm(network, [batch])
    check(network, [images for images, _ in arrays])
    with pytest.raises(ConfigError, match="network is 3; it must be a cell"):
        reestimate_batch_norm(3, drawn)
