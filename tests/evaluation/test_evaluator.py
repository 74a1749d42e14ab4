"""Measurements on splits: the mean over labels, and re-estimated statistics."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, dataset, float32, nn
from scipy.special import log_softmax
from sklearn.metrics import f1_score

from dimred.errors import ConfigError, DataError
from dimred.evaluation.evaluator import Evaluator
from dimred.evaluation.measures import MeanOfItems, OfWholeSplit, Scores, rows_of_split

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
        for first in range(0, self.n_images, BATCH):
            part = slice(first, first + BATCH)
            yield Tensor(self.inputs[part]), Tensor(self.labels[part])


@pytest.fixture
def network() -> nn.Cell:
    return nn.SequentialCell(nn.BatchNorm1d(3))


SPLITS = {"train": Split(12, 1), "val": Split(9, 2)}


def accuracy(split: Split, mean: np.ndarray, variance: np.ndarray) -> float:
    scores = (split.inputs - mean) / np.sqrt(variance + 1e-5)
    return float(np.mean(scores.argmax(1) == split.labels))


def losses(split: Split, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    logs = log_softmax((split.inputs - mean) / np.sqrt(variance + 1e-5), axis=1)
    found: np.ndarray = -logs[np.arange(split.n_images), split.labels]
    return found


def test_reestimated_statistics_are_those_of_the_first_spare_batches(network: nn.Cell) -> None:
    evaluator, val = Evaluator(network, SPLITS, seed=1, n_batches=2), SPLITS["val"]
    parts = SPLITS["train"].inputs[: 2 * BATCH].reshape(2, BATCH, 3).astype(np.float64)
    reestimated = parts.mean((0, 1)), parts.var((0, 1))
    for statistics in ((np.zeros(3), np.ones(3)), reestimated):
        found, [metric] = evaluator.losses_and_metrics("val")
        assert evaluator.metrics("val") == [metric] == [accuracy(val, *statistics)]
        np.testing.assert_allclose(found, losses(val, *statistics), rtol=1e-5, atol=1e-6)
        assert evaluator.reestimate() == 2
    np.testing.assert_allclose(network[0].moving_mean.asnumpy(), reestimated[0], rtol=1e-5)


def test_each_batch_is_told_whether_it_is_read_or_was_kept(network: nn.Cell) -> None:
    told: list[None] = []
    evaluator = Evaluator(network, SPLITS, seed=1, n_batches=2, at_batch=lambda: told.append(None))
    for times in (1, 2):
        evaluator.losses_and_metrics("val")
        assert len(told) == times * -(-9 // BATCH)


def test_a_disk_that_is_away_for_a_moment_ends_no_evaluation(network: nn.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(Split):
        n_readings = 0

        def evaluation(self) -> dataset.Dataset:
            self.n_readings += 1
            if self.n_readings == 1:
                raise DataError("the folder is gone")
            return super().evaluation()

    monkeypatch.setattr("dimred.data.batches.WAITS_SECONDS", (0.0,))
    away, there = (Evaluator(network, {"val": split}, seed=1, n_batches=2) for split in (Away(9, 2), SPLITS["val"]))
    assert away.metrics("val") == there.metrics("val")


def test_a_split_that_lost_samples_during_the_run_is_not_measured(network: nn.Cell) -> None:
    """As when a file is removed, since MindSpore passes over a sample whose number is too large without a word."""
    less = Split(9, 2)
    less.n_images = 10
    with pytest.raises(DataError, match="'val' gave 9 samples to rank 0, but had 10 for it when the run began"):
        Evaluator(network, {"val": less}, seed=1, n_batches=2).metrics("val")


def test_a_metric_of_the_whole_split_gets_all_outputs_and_labels_at_once(network: nn.Cell) -> None:
    def f1(outputs: np.ndarray, labels: np.ndarray) -> float:
        value: float = f1_score(labels, outputs.argmax(1), average="macro")
        labels[:], outputs[:] = 0, 0  # changes its own copies
        return value

    val = SPLITS["val"]
    metrics = (OfWholeSplit(f1), MeanOfItems(keeps), OfWholeSplit(lambda outputs, labels: np.array([len(labels)])))
    evaluator = Evaluator(network, SPLITS, Scores(keeps, metrics), seed=1, n_batches=2)
    of_all = f1_score(val.labels, val.inputs.argmax(1), average="macro")
    parts = [slice(first, first + BATCH) for first in range(0, 9, BATCH)]
    of_batches = [f1_score(val.labels[part], val.inputs[part].argmax(1), average="macro") for part in parts]
    assert of_all != pytest.approx(np.mean(of_batches))
    for _ in range(2):
        whole, mean, n_samples = evaluator.metrics("val")
        assert (whole, n_samples) == (pytest.approx(of_all), 9)
        assert mean == np.mean(val.inputs.argmax(1) == val.labels)


def test_a_metric_of_the_whole_split_gives_one_number_and_gets_samples_of_one_shape(network: nn.Cell) -> None:
    several = Scores(keeps, (OfWholeSplit(lambda outputs, labels: outputs.mean(0)),))
    with pytest.raises(ConfigError, match=r"metric gave array\(.* for the whole split; it must give one number"):
        Evaluator(network, SPLITS, several, seed=1, n_batches=2).metrics("val")
    uneven = [(np.zeros((2, 3), np.float32), np.zeros(2)), (np.zeros((1, 4), np.float32), np.zeros(1))]
    with pytest.raises(ConfigError, match=r"outputs or labels have the shapes \(3,\) and \(4,\); pad them"):
        rows_of_split(uneven)
    with pytest.raises(DataError, match="needs a sample on every rank"):
        rows_of_split([])


def edits_labels(outputs: Tensor, labels: Tensor) -> Tensor:
    labels[labels == 2] = 0
    return (outputs.argmax(1) == labels).astype(float32)


def edits_memory(outputs: Tensor, labels: Tensor) -> np.ndarray:
    memory = labels.asnumpy()
    memory[memory == 2] = 0
    outputs.asnumpy()[:] = 0
    return memory == 0


def keeps(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(1) == labels).astype(float32)


class EditsInputs(nn.Cell):
    """A network that changes its inputs in place, and has statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def construct(self, inputs: Tensor) -> Tensor:
        inputs[:, 0] += 1.0
        return self.norm(inputs)


@pytest.mark.parametrize("loss", [edits_labels, edits_memory])
def test_what_a_metric_or_a_loss_changes_in_place_changes_no_other_measurement(network: nn.Cell, loss: Any) -> None:
    evaluator = Evaluator(network, SPLITS, Scores(loss, (MeanOfItems(loss), MeanOfItems(keeps))), seed=1, n_batches=2)
    right = Evaluator(network, SPLITS, Scores(keeps, (MeanOfItems(keeps),)), seed=1, n_batches=2).metrics("val")
    first_losses, first = evaluator.losses_and_metrics("val")
    assert first[1:] == right
    for _ in range(2):
        losses_again, again = evaluator.losses_and_metrics("val")
        assert again == first
        np.testing.assert_array_equal(losses_again, first_losses)


def test_what_a_network_changes_in_place_changes_no_kept_batch() -> None:
    network = EditsInputs()
    evaluator = Evaluator(network, SPLITS, seed=1, n_batches=2)
    results = []
    for _ in range(2):
        evaluator.reestimate()
        results.append((network.norm.moving_mean.asnumpy().tolist(), evaluator.metrics("val")))
    assert results[0] == results[1]
