"""Measuring on splits: the mean over labels, statistics re-estimated, and the passes that choosing costs."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, dataset, nn

from dimred.errors import ConfigError
from dimred.evaluate.evaluator import Evaluator, OnSplits
from dimred.vectors.parameters import to_arrays

BATCH = 4


class Split:
    """Inputs of a mean and spread that the network's statistics don't have, and labels at random."""

    batch_size = BATCH

    def __init__(self, n_images: int, seed: int):
        rng = np.random.default_rng(seed)
        self.n_images = n_images
        self.inputs = rng.normal(3.0, 2.0, (n_images, 3)).astype(np.float32)
        self.labels = rng.integers(0, 3, n_images).astype(np.int32)

    def evaluation(self) -> dataset.Dataset:
        return dataset.NumpySlicesDataset((self.inputs, self.labels), shuffle=False).batch(BATCH)

    def spare_batches(self, seed: int) -> Iterator[Any]:
        full = self.n_images // BATCH
        for number in count() if full else ():
            part = slice(number % full * BATCH, (number % full + 1) * BATCH)
            yield Tensor(self.inputs[part]), Tensor(self.labels[part])


@pytest.fixture
def network() -> nn.Cell:
    ms.set_context(mode=ms.GRAPH_MODE)
    return nn.SequentialCell(nn.BatchNorm1d(3))


SPLITS = {"train": Split(12, 1), "val": Split(9, 2), "test": Split(10, 3)}


def accuracy(split: Split, mean: np.ndarray, variance: np.ndarray) -> float:
    scores = (split.inputs - mean) / np.sqrt(variance + 1e-5)
    return float(np.mean(scores.argmax(1) == split.labels))


def statistics_of_two_batches() -> tuple[np.ndarray, np.ndarray]:
    parts = SPLITS["train"].inputs[: 2 * BATCH].reshape(2, BATCH, 3).astype(np.float64)
    return parts.mean(1).mean(0), parts.var(1, ddof=1).mean(0)


def test_reestimated_statistics_are_those_of_the_first_spare_batches(network: nn.Cell) -> None:
    on = OnSplits(network, SPLITS, seed=1, n_batches=2)
    assert on.accuracy("val") == accuracy(SPLITS["val"], np.zeros(3), np.ones(3))
    before = on.losses("val")
    assert on.reestimate() == 2
    mean, variance = statistics_of_two_batches()
    np.testing.assert_allclose(network[0].moving_mean.asnumpy(), mean, rtol=1e-5)
    assert on.accuracy("val") == accuracy(SPLITS["val"], mean, variance)
    assert np.all(on.losses("val") != before)


def test_too_few_training_images_for_a_batch_are_said(network: nn.Cell) -> None:
    with pytest.raises(ConfigError, match="no training batches"):
        OnSplits(network, SPLITS | {"train": Split(3, 1)}, seed=1, n_batches=2).reestimate()


def test_choosing_is_counted_and_reporting_is_not(network: nn.Cell) -> None:
    arrays = to_arrays(network.get_parameters())
    other = nn.SequentialCell(nn.BatchNorm1d(3))
    evaluator = Evaluator(other, *SPLITS.values(), seed=1, n_batches=2)
    found = evaluator.report(arrays)
    mean, variance = statistics_of_two_batches()
    assert found == {
        "val": accuracy(SPLITS["val"], np.zeros(3), np.ones(3)),
        "test": accuracy(SPLITS["test"], np.zeros(3), np.ones(3)),
        "val_reestimated": accuracy(SPLITS["val"], mean, variance),
        "test_reestimated": accuracy(SPLITS["test"], mean, variance),
    }
    assert evaluator.cost.forward == 0
    assert evaluator.val_accuracy(arrays) == found["val"]  # the weights are put in anew
    assert evaluator.val_accuracy(evaluator.reestimated(arrays)) == found["val_reestimated"]
    assert len(evaluator.val_losses(arrays)) == 9
    assert (evaluator.cost.forward, evaluator.cost.backward) == (3 * 9 + 2 * BATCH, 0)
