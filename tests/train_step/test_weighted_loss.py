"""The loss of a part of a batch and its weight, the number of items in that mean for each row."""

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.errors import ConfigError
from dimred.train_step.mean_loss import MeanLoss
from dimred.train_step.weighted_loss import MeanOfBatches, WeightedLoss
from tests.oracles.train_step import cross_entropy

IGNORED = -100
X = np.arange(12.0).reshape(4, 3).astype(np.float32)


class Returns(nn.Cell):
    """A network that returns a function of its first input; the others may have any shape."""

    def __init__(self, function: Any):
        super().__init__()
        self.function = function

    def construct(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def counted(number: int, dtype: Any = ms.int32) -> Returns:
    """Make a network that returns a sum, and this count."""
    return Returns(lambda x, *others: (x.sum(), Tensor(number, dtype)))


def values(cell: nn.Cell, *inputs: Any) -> list[float]:
    given = (Tensor(each) if isinstance(each, np.ndarray | np.generic) else each for each in inputs)
    return [float(value.asnumpy()) for value in cell(*given)]


MEAN = Returns(lambda x, *others: x.mean())


@pytest.mark.parametrize(
    ("network", "inputs", "mean", "weight"),
    [
        (MEAN, [X, X[:2]], 5.5, 1.0),  # a loss of another kind counts its rows
        (MEAN, [X[0, 0]], 0.0, 1.0),
        (counted(3), [X], 22.0, 0.75),
        (counted(3), [X, X[:2, 0]], 22.0, 0.75),  # the first input has the rows
        (counted(3), [X[:, 0], X], 6.0, 0.75),
        (counted(3), [X, 0.5], 22.0, 0.75),  # a number is no rows
        (counted(3), [X[1, 1], X], 4 / 3, 3.0),
        (counted(0), [X], 66.0, 0.0),
        (Returns(lambda: (Tensor(6.0), Tensor(4, ms.int64))), [], 1.5, 4.0),
    ],
)
def test_a_mean_or_a_sum_with_its_count(
    network: nn.Cell, inputs: list[Any], mean: float, weight: float, pynative: None
) -> None:
    assert values(WeightedLoss(network), *inputs) == pytest.approx([mean, mean * weight, weight])


class SumOf(nn.Cell):
    """The sum of some losses of the logits that are its first input."""

    def __init__(self, *losses: nn.Cell):
        super().__init__()
        self.losses = nn.CellList(list(losses))

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        total = self.losses[0](logits, labels)
        for loss in self.losses[1:]:
            total = total + loss(logits, labels)
        return total


@pytest.mark.parametrize(
    ("labels", "class_weights", "n_items"),
    [
        ([0, IGNORED, 2, IGNORED], None, 2),
        ([0, 1, 2, 0], None, 4),
        ([1, 2, IGNORED, 2], [0.5, 2.0, 0.25], 2.5),
        ([0, IGNORED, IGNORED, IGNORED], [0.5, 2.0, 0.25], 0.5),
    ],
)
def test_a_cross_entropy_counts_its_labels_or_their_weights(
    labels: list[int], class_weights: list[float] | None, n_items: float, pynative: None
) -> None:
    loss = nn.CrossEntropyLoss(weight=None if class_weights is None else Tensor(class_weights, ms.float32))
    weights = None if class_weights is None else np.array(class_weights)
    expected, _, _ = cross_entropy(np.eye(3), X, np.array(labels), IGNORED, weights, 0.0)
    found = values(WeightedLoss(SumOf(loss)), X, np.array(labels, np.int32))
    assert found == pytest.approx([expected, expected * n_items / 4, n_items / 4], rel=1e-5)


def test_without_a_label_that_counts_mean_and_weight_are_0(pynative: None) -> None:
    labels = np.full(4, IGNORED, np.int32)
    assert values(WeightedLoss(SumOf(nn.CrossEntropyLoss())), X, labels) == [0, 0, 0]


def test_the_labels_of_two_cross_entropies_are_counted_together(pynative: None) -> None:
    cell = WeightedLoss(SumOf(nn.CrossEntropyLoss(ignore_index=0), nn.CrossEntropyLoss(ignore_index=1)))
    assert values(cell, X, np.array([0, 1, 1, 2], np.int32))[2] == (3 + 2) / 4
    assert values(cell, X, np.array([0, 0, 0, 2], np.int32))[2] == (1 + 4) / 4


@pytest.mark.parametrize(("shape", "n_items"), [((4, 3), 4), ((2, 3, 4, 5), 40), ((3,), 1)], ids=str)
def test_probabilities_count_once_for_all_classes(shape: tuple[int, ...], n_items: int, pynative: None) -> None:
    rng = np.random.default_rng(3)
    logits, labels = (rng.random(shape).astype(np.float32) for _ in range(2))
    weight = values(WeightedLoss(SumOf(nn.CrossEntropyLoss())), logits, labels)[2]
    assert weight == pytest.approx(n_items / shape[0])


@pytest.mark.parametrize("dtype", [ms.int32, ms.int64])
def test_a_whole_batch_weighs_1(dtype: Any, pynative: None) -> None:
    assert values(MeanLoss(MEAN), X) == [5.5, 5.5, 1]
    assert values(MeanLoss(counted(3, dtype)), X) == [22, 22, 1]


def test_the_mean_of_batches_divides_by_the_weight_and_passes_the_votes_on(pynative: None) -> None:
    gradients, votes = (Tensor([1.0, 2.0]), Tensor([4.0])), (Tensor(5.0), Tensor(6.0))
    loss, divided, passed = MeanOfBatches(None)(Tensor(3.0), gradients, Tensor(0.5), votes)
    assert float(loss.asnumpy()) == 6
    assert [each.asnumpy().tolist() for each in divided] == [[2, 4], [8]]
    assert [float(each.asnumpy()) for each in passed] == [5, 6]


NUMBER, COUNT = Tensor(1.0), Tensor(2, ms.int32)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ((), ""),
        ((NUMBER, NUMBER), r"Float32 \(\) and Float32 \(\)"),
        ((COUNT, NUMBER), r"Int32 \(\) and Float32 \(\)"),
        ((NUMBER, COUNT, COUNT), r"Float32 \(\) and Int32 \(\) and Int32 \(\)"),
        ((NUMBER, None), r"Float32 \(\) and no tensor"),
        ((None, COUNT), r"no tensor and Int32 \(\)"),
        ((Tensor([1.0]), COUNT), r"Float32 \(1,\) and Int32 \(\)"),
        ((NUMBER, Tensor([2], ms.int32)), r"Float32 \(\) and Int32 \(1,\)"),
        (Tensor([1.0]), r"Float32 \(1,\)"),
    ],
)
def test_anything_else_is_refused(returned: Any, words: str, pynative: None) -> None:
    for kind in (MeanLoss, WeightedLoss):
        with pytest.raises(ConfigError, match=f"the network gives {words} as its loss; a step needs"):
            kind(Returns(lambda *inputs: returned))(Tensor(X))
