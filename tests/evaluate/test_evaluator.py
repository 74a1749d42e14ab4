"""Measuring on splits: the mean over labels, statistics re-estimated, and the passes that choosing costs."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, dataset, nn
from scipy.special import log_softmax

from dimred.errors import ConfigError, DataError
from dimred.evaluate.evaluator import Evaluator, OnSplits
from dimred.vectors.parameters import to_arrays

BATCH = 4


class Split:
    """Inputs of a mean and spread that the network's statistics don't have, and labels at random."""

    batch_size = BATCH

    def __init__(self, n_images: int, seed: int, at_batch: Callable[[], object] = lambda: None):
        self.at_batch = at_batch
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


def losses(split: Split, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    logs = log_softmax((split.inputs - mean) / np.sqrt(variance + 1e-5), axis=1)
    found: np.ndarray = -logs[np.arange(split.n_images), split.labels]
    return found


def statistics_of_two_batches() -> tuple[np.ndarray, np.ndarray]:
    parts = SPLITS["train"].inputs[: 2 * BATCH].reshape(2, BATCH, 3).astype(np.float64)
    return parts.mean(1).mean(0), parts.var(1, ddof=1).mean(0)


def test_reestimated_statistics_are_those_of_the_first_spare_batches(network: nn.Cell) -> None:
    on = OnSplits(network, SPLITS, seed=1, n_batches=2)
    assert on.metric("val") == accuracy(SPLITS["val"], np.zeros(3), np.ones(3))
    before = on.losses("val")
    assert on.reestimate() == 2
    mean, variance = statistics_of_two_batches()
    np.testing.assert_allclose(network[0].moving_mean.asnumpy(), mean, rtol=1e-5)
    assert on.metric("val") == accuracy(SPLITS["val"], mean, variance)
    assert np.all(on.losses("val") != before)


def test_kept_batches_are_signs_of_life_too(network: nn.Cell) -> None:
    read: list[None] = []
    on = OnSplits(network, {split: Split(9, 2, lambda: read.append(None)) for split in SPLITS}, seed=1, n_batches=2)
    on.losses("val")
    assert not read  # reading calls it itself
    on.losses("val")
    assert len(read) == -(-9 // BATCH)


def test_too_few_training_images_for_a_batch_are_said(network: nn.Cell) -> None:
    with pytest.raises(ConfigError, match="no training batches"):
        OnSplits(network, SPLITS | {"train": Split(3, 1)}, seed=1, n_batches=2).reestimate()


def test_a_disk_that_is_away_for_a_moment_ends_no_evaluation(network: nn.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(Split):
        n_readings = 0

        def evaluation(self) -> dataset.Dataset:
            self.n_readings += 1
            if self.n_readings == 1:
                raise DataError("the folder is gone")
            return super().evaluation()

    monkeypatch.setattr("dimred.data.batches._WAITS_SECONDS", (0.0,))
    away, there = (OnSplits(network, {"val": split}, seed=1, n_batches=2) for split in (Away(9, 2), SPLITS["val"]))
    assert away.metric("val") == there.metric("val")


class Watched(NamedTuple):
    """Notes each pass over a split."""

    split: str
    batches: Any
    passes: list[str]

    def create_tuple_iterator(self, num_epochs: int) -> Iterator[Any]:
        self.passes.append(self.split)
        yield from self.batches.create_tuple_iterator(num_epochs=num_epochs)


def test_choosing_is_counted_and_reporting_is_not(network: nn.Cell) -> None:
    arrays = to_arrays(network.get_parameters())
    other = nn.SequentialCell(nn.BatchNorm1d(3))
    evaluator = Evaluator(OnSplits(other, SPLITS, seed=1, n_batches=2), SPLITS)
    passes = list[str]()
    evaluator.on._splits = {split: Watched(split, kept, passes) for split, kept in evaluator.on._splits.items()}
    found = evaluator.report(arrays)
    assert passes == ["val", "test", "val", "test"]
    before, after = (np.zeros(3), np.ones(3)), statistics_of_two_batches()
    assert {name: value for name, value in found.items() if not name.endswith("loss")} == {
        "val": accuracy(SPLITS["val"], *before),
        "test": accuracy(SPLITS["test"], *before),
        "val_reestimated": accuracy(SPLITS["val"], *after),
        "test_reestimated": accuracy(SPLITS["test"], *after),
    }
    assert evaluator.cost.forward == 0
    before_losses = evaluator.val_losses(arrays)  # the weights are put in anew
    after_losses = evaluator.val_losses(evaluator.reestimated(arrays))
    assert found["val_loss"] == pytest.approx(after_losses.mean()) != before_losses.mean()
    assert found["test_loss"] == pytest.approx(losses(SPLITS["test"], *after).mean(), rel=1e-5)
    np.testing.assert_allclose(before_losses, losses(SPLITS["val"], *before), rtol=1e-5)
    assert (evaluator.cost.forward, evaluator.cost.backward) == (2 * 9 + 3 * BATCH, 0)
