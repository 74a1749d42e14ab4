"""Accuracy against a count by hand, cross entropy against scikit-learn's; what they can't count, they say."""

from typing import NamedTuple

import numpy as np
import pytest
from mindspore import Tensor, dataset, nn
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss

from dimred.errors import DataError
from dimred.evaluation.scores import IGNORED, Score, cross_entropy, is_correct
from tests.helpers.scoring import mean_score, sample_scores

B, V, L = 7, 4, 5  # texts, words that there are, places in a text


class Labelled(NamedTuple):
    """A network that drops nearly everything in training, 23 inputs in uneven batches, and what it should say."""

    network: nn.Cell
    batches: dataset.Dataset
    logits: np.ndarray
    labels: np.ndarray


@pytest.fixture
def labelled() -> Labelled:
    rng = np.random.default_rng(3)
    images, labels = rng.normal(size=(23, 6)).astype(np.float32), rng.integers(0, 4, 23).astype(np.int32)
    network = nn.SequentialCell(nn.Dense(6, 4), nn.Dropout(p=0.9)).set_train(True)
    batches = dataset.NumpySlicesDataset((images, labels), shuffle=False).batch(5)
    logits = images @ network[0].weight.asnumpy().T + network[0].bias.asnumpy()
    return Labelled(network, batches, logits, labels)


def test_accuracy_counts_every_label_once_the_uneven_last_batch_too(labelled: Labelled) -> None:
    network, labels = labelled.network, labelled.labels
    assert mean_score(network, is_correct, labelled.batches) == np.mean(labelled.logits.argmax(1) == labels)
    assert network.training
    network[0].bias.set_data(Tensor(np.array([100, 0, 0, 0], np.float32)))
    assert mean_score(network, is_correct, labelled.batches) == np.mean(labels == 0)


def test_cross_entropy_is_that_of_the_labels(labelled: Labelled) -> None:
    found = mean_score(labelled.network, cross_entropy, labelled.batches)
    assert labelled.network.training
    probabilities = softmax(labelled.logits.astype(np.float64), axis=1)
    assert found == pytest.approx(log_loss(labelled.labels, probabilities), rel=1e-5)


def test_the_loss_of_each_sample_is_its_share_of_the_mean() -> None:
    labels = np.random.default_rng(2).integers(0, V, (B, L)).astype(np.int32)
    labels[2:, 3:] = IGNORED
    logits, batches = texts(labels)
    losses = sample_scores(nn.Identity(), cross_entropy, batches)
    log_shares = log_softmax(logits.astype(np.float64), axis=1)
    sums = [-sum(log_shares[i, labels[i, j], j] for j in range(L) if labels[i, j] != IGNORED) for i in range(B)]
    np.testing.assert_allclose(losses, np.array(sums) / np.mean((labels != IGNORED).sum(1)), rtol=1e-5)
    assert losses.mean() == pytest.approx(mean_score(nn.Identity(), cross_entropy, texts(labels)[1]), rel=1e-6)


def texts(labels: np.ndarray) -> tuple[np.ndarray, dataset.Dataset]:
    logits = np.random.default_rng(1).normal(size=(B, V, L)).astype(np.float32)
    return logits, dataset.NumpySlicesDataset((logits, labels), shuffle=False).batch(3)


@pytest.mark.parametrize("counted", [L, 3])
def test_each_place_of_a_text_counts_for_itself_unless_it_is_to_be_ignored(counted: int) -> None:
    labels = np.random.default_rng(2).integers(0, V, (B, L)).astype(np.int32)
    labels[:, counted:] = IGNORED
    logits, batches = texts(labels)
    logits, kept = logits[:, :, :counted], labels[:, :counted]
    assert mean_score(nn.Identity(), is_correct, batches) == pytest.approx(np.mean(logits.argmax(1) == kept))
    probabilities = softmax(logits.astype(np.float64), axis=1).transpose(0, 2, 1).reshape(-1, V)
    expected = log_loss(kept.ravel(), probabilities)
    assert mean_score(nn.Identity(), cross_entropy, batches) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("score", [is_correct, cross_entropy])
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.zeros((B, L), np.float32), r"the labels are Float32 of the shape \(3, 5\), but only whole numbers"),
        (np.zeros(B, np.int32), r"logits of the shape \(3, 4, 5\) for labels of the shape \(3,\)"),
        (np.full((B, L), V, np.int32), r"there is the label 4, but the network has 4 outputs, for the classes 0 to 3"),
        (np.full((B, L), -1, np.int32), r"there is the label -1, .* mark what is to be ignored with -100"),
        (np.zeros((B, V), np.int32), r"logits of the shape \(3, 4, 5\) for labels of the shape \(3, 4\)"),
    ],
)
def test_labels_that_can_not_be_classified_are_refused(score: Score, labels: np.ndarray, said: str) -> None:
    network = nn.SequentialCell(nn.Identity())
    network.set_train(True)
    with pytest.raises(DataError, match=said):
        mean_score(network, score, texts(labels)[1])
    assert network.training


def test_logits_without_an_axis_of_classes_are_refused() -> None:
    batches = dataset.NumpySlicesDataset((np.zeros(B, np.float32), np.zeros(B, np.int32))).batch(3)
    with pytest.raises(DataError, match=r"logits of the shape \(3,\) for labels"):
        mean_score(nn.Identity(), is_correct, batches)
