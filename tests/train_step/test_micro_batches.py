"""A batch cut into micro-batches gives what the whole batch gives, in the ordinary step and in the search."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

from dimred.errors import ConfigError
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.clipping import Clipping
from dimred.train_step.loss_scale import StaticLossScale
from dimred.train_step.step import TrainStep
from tests.helpers.networks import BatchNormNet, TanhMLP, basis_for, image_batch, mlp_function, weight_vector
from tests.helpers.problems import tensors

N_STEPS, ROWS, LAST_ROWS = 12, 8, 5  # the last batch of every epoch of four is an incomplete group
RATE, MOMENTUM = 0.05, 0.9


def batches(n: int = N_STEPS, last: int = LAST_ROWS) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(4)
    sizes = [last if number % 4 == 3 else ROWS for number in range(n)]
    return [tuple(rng.standard_normal((rows, width)).astype(np.float32) for width in (3, 2)) for rows in sizes]


def momentum_by_hand() -> np.ndarray:
    w, v = weight_vector(TanhMLP()).astype(np.float64), 0.0
    for batch in batches():
        _, g = mlp_function()(w, batch)
        v = MOMENTUM * v + g
        w = w - RATE * v
    return w


@pytest.mark.parametrize(("size", "graph"), [(2, False), (None, False), (1, True)])
def test_twelve_ordinary_steps_are_the_same_whatever_the_micro_batch(size, graph, pynative):
    ms.set_context(mode=ms.GRAPH_MODE if graph else ms.PYNATIVE_MODE)
    network = TanhMLP()
    step = TrainStep(network, nn.Momentum(network.trainable_params(), RATE, MOMENTUM), micro_batch_size=size)
    for batch in batches():
        loss = step(*tensors(batch)).loss
    assert (loss.shape, loss.dtype) == ((), ms.float32)
    np.testing.assert_allclose(weight_vector(network), momentum_by_hand(), atol=3e-5)  # they moved by about 1


def test_eight_search_steps_are_the_same_whatever_the_micro_batch(pynative):
    ends, found = [], []
    for size in (None, 4, 1):
        network = TanhMLP()
        step = SubspaceTrainStep(network, basis_for(network, 6), alpha=0.01, rule="sgd", micro_batch_size=size)
        found.append([step(*tensors(batch)) for batch in batches(8)])
        ends.append(weight_vector(network))
    for end, results in zip(ends[1:], found[1:], strict=True):
        np.testing.assert_allclose(end, ends[0], rtol=2e-5, atol=2e-6)
        for one, whole in zip(results, found[0], strict=True):
            assert one.loss_after == pytest.approx(whole.loss_after, rel=1e-5)
            assert float(one.loss.asnumpy()) == pytest.approx(float(whole.loss.asnumpy()), rel=1e-5)


@pytest.mark.parametrize("stage", [1, 2])
def test_batch_norm_statistics_move_once_for_the_group_by_the_mean_of_its_micro_batches(stage, pynative):
    left = []
    for rows in (slice(0, 4), slice(4, 6)):
        network = BatchNormNet()
        network.set_train(True)
        network(*[part[rows] for part in image_batch(0, 6)])
        left.append(network.norm.moving_mean.asnumpy())
    network = BatchNormNet()
    if stage == 1:
        step = TrainStep(network, nn.SGD(network.trainable_params(), 0.1), micro_batch_size=4)
        step.set_train(True)
    else:
        step = SubspaceTrainStep(network, basis_for(network, 8), micro_batch_size=4)
    step(*image_batch(0, 6))
    np.testing.assert_allclose(network.norm.moving_mean.asnumpy(), (4 * left[0] + 2 * left[1]) / 6, rtol=1e-5)


@pytest.mark.parametrize("searches", [False, True])
def test_inputs_that_can_not_be_cut_are_named(searches):
    network, x = TanhMLP(), Tensor(np.ones((4, 3), np.float32))
    options = {"micro_batch_size": 2}
    if searches:
        step = SubspaceTrainStep(network, basis_for(network), **options)
    else:
        step = TrainStep(network, nn.SGD(network.trainable_params(), 0.1), **options)
    others = [Tensor(np.ones((3, 2), np.float32)), Tensor(1.0), ms.ops.zeros((0, 2)), 2.0, (x,), None]
    for other in others:
        with pytest.raises(
            ConfigError, match=r"micro_batch_size is 2, but the step's inputs are \(4, 3\) and .*; to be"
        ):
            step(x, other)


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_a_micro_batch_has_a_whole_number_of_rows(size):
    network = TanhMLP()
    with pytest.raises(ConfigError, match="micro_batch_size is"):
        TrainStep(network, nn.SGD(network.trainable_params(), 0.1), micro_batch_size=size)
    with pytest.raises(ConfigError, match="micro_batch_size is"):
        SubspaceTrainStep(network, basis_for(network), micro_batch_size=size)


def test_the_rows_of_a_micro_batch_may_be_an_integer_of_numpy():
    network, x, target = TanhMLP(), Tensor(np.ones((4, 3), np.float32)), Tensor(np.ones((4, 2), np.float32))
    step = TrainStep(network, nn.SGD(network.trainable_params(), 0.1), micro_batch_size=np.int64(2))
    assert step(x, target).applied


class Renamed(nn.BCEWithLogitsLoss):
    """The loss by another name."""


class BinaryNet(nn.Cell):
    """A linear network with a binary cross entropy of its logits, each class of another weight."""

    def __init__(self, pos_weight: np.ndarray | None):
        super().__init__()
        self.dense = nn.Dense(3, 2, weight_init="ones", bias_init="zeros")
        self.loss = Renamed() if pos_weight is None else nn.BCEWithLogitsLoss(pos_weight=Tensor(pos_weight))

    def construct(self, inputs, targets):
        return self.loss(self.dense(inputs), targets)


@pytest.mark.parametrize("searches", [False, True])
@pytest.mark.parametrize("pos_weight", [None, np.float32([0.5, 3.0])], ids=["plain", "weighted"])
def test_a_binary_cross_entropy_has_its_own_gradient_whatever_batch_came_first(pos_weight, searches, pynative):
    """MindSpore's kernel divides the gradient by the number of elements that the first batch had."""
    x, y = (part[:, :2] if part.shape[1] == 2 else part for part in batches(1)[0])
    y, p = (y > 0).astype(np.float32), 1.0 if pos_weight is None else pos_weight
    ms.grad(nn.BCEWithLogitsLoss())(Tensor(np.ones((20, 2), np.float32)), Tensor(np.ones((20, 2), np.float32)))
    network = BinaryNet(pos_weight)
    before = weight_vector(network).astype(np.float64)
    if searches:
        options = {"rule": "sgd", "learning_rate": 1.0, "alpha": 0, "micro_batch_size": 3}
        step = SubspaceTrainStep(network, basis_for(network, 8), **options)
    else:
        step = TrainStep(network, nn.SGD(network.trainable_params(), 1.0), micro_batch_size=3)
    step(*tensors((x, y)))
    z = x @ before[:6].reshape(2, 3).T
    s = 1 / (1 + np.exp(-z))
    of_logits = (-p * y * (1 - s) + (1 - y) * s) / y.size
    gradient = np.concatenate([(of_logits.T @ x).ravel(), of_logits.sum(0)])
    np.testing.assert_allclose(before - weight_vector(network), gradient, atol=1e-6)


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.MSELoss, mint.nn.MSELoss])
def test_a_sum_in_place_of_a_mean_is_warned_of(kind, caplog):
    network = nn.WithLossCell(nn.Dense(3, 2), kind(reduction="sum"))
    TrainStep(network, nn.SGD(network.trainable_params(), 0.1))
    assert not caplog.messages
    TrainStep(network, nn.SGD(network.trainable_params(), 0.1), micro_batch_size=2)
    assert f"{kind.__name__} has reduction='sum'" in caplog.text


class Lookup(nn.Cell):
    """An embedding whose gradient has the rows that were looked up, as is MindSpore's default, and a loss."""

    def __init__(self):
        super().__init__()
        self.lookup = nn.EmbeddingLookup(9, 4, target="CPU")

    def construct(self, numbers):
        return self.lookup(numbers).square().mean()


@pytest.mark.parametrize(
    "part", [{"micro_batch_size": 2}, *({"parts": [part]} for part in (Clipping(1.0), StaticLossScale(8.0))), {}]
)
def test_sparse_gradients_are_refused_where_they_can_not_be_used(part):
    network = Lookup()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    TrainStep(network, optimizer)
    with pytest.raises(
        ConfigError, match=r"the network's cell 'lookup', of type EmbeddingLookup, has sparse gradients"
    ):
        TrainStep(network, optimizer, **part) if part else SubspaceTrainStep(network, basis_for(network, 2))
