"""Accuracy, cross entropy and other scores equal those of NumPy and scikit-learn; uncountable labels are refused."""

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, dataset, nn
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss

from dimred.errors import ConfigError, DataError
from dimred.evaluation.measures import MeanOfItems, MeansOfSamples, measure_batches
from dimred.evaluation.scores import (
    IGNORED,
    Score,
    cross_entropy,
    is_among_five,
    is_correct,
    sums_and_counts,
)
from tests.helpers.commands import REPOSITORY

N, V, T = 7, 4, 5  # texts, words of the vocabulary, places in a text
RNG = np.random.default_rng(4)
OUTPUTS, LABELS = RNG.normal(size=(2, N, T)).astype(np.float32)
LOGITS, WORDS = RNG.normal(size=(N, V, T)).astype(np.float32), RNG.integers(0, V, (N, T)).astype(np.int32)


def batches(*columns: np.ndarray) -> dataset.Dataset:
    """Put columns into uneven batches."""
    return dataset.NumpySlicesDataset(columns, shuffle=False).batch(3)


def mean_score(score: Score, *columns: np.ndarray, network: nn.Cell | None = None) -> float:
    measure = MeanOfItems(score)
    [kept], _ = measure_batches(network or nn.Identity(), batches(*columns), [measure])
    return measure.of_split(kept)


def sample_scores(score: Score, *columns: np.ndarray) -> np.ndarray:
    measure = MeansOfSamples(score)
    [kept], _ = measure_batches(nn.Identity(), batches(*columns), [measure])
    return measure.of_split(kept)


def test_accuracy_and_cross_entropy_count_every_label_once_without_dropout() -> None:
    images, labels = RNG.normal(size=(23, 6)).astype(np.float32), RNG.integers(0, 4, 23).astype(np.int32)
    network = nn.SequentialCell(nn.Dense(6, 4), nn.Dropout(p=0.9)).set_train(True)
    logits = images @ network[0].weight.asnumpy().T + network[0].bias.asnumpy()
    assert mean_score(is_correct, images, labels, network=network) == np.mean(logits.argmax(1) == labels)
    expected = log_loss(labels, softmax(logits.astype(np.float64), axis=1))
    assert mean_score(cross_entropy, images, labels, network=network) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n_classes", [3, 7])
def test_top5_is_that_fewer_than_five_classes_have_a_higher_logit(n_classes: int) -> None:
    logits, labels = RNG.normal(size=(40, n_classes)).astype(np.float32), RNG.integers(0, n_classes, 40)
    labels[3] = IGNORED
    n_higher = (logits > np.take_along_axis(logits, np.maximum(labels, 0)[:, None], 1)).sum(1)
    expected = np.mean((n_higher < 5)[labels != IGNORED])
    assert mean_score(is_among_five, logits, labels.astype(np.int32)) == expected == (1 if n_classes == 3 else expected)
    of_words = np.stack([logits, logits[::-1]], 2)
    both = np.stack([labels, labels[::-1]], 1).astype(np.int32)
    assert mean_score(is_among_five, of_words, both) == expected


@pytest.mark.parametrize("counted", [T, 3])
def test_each_place_of_a_text_counts_for_itself_unless_it_is_to_be_ignored(counted: int) -> None:
    labels = WORDS.copy()
    labels[:, counted:] = IGNORED
    logits, kept = LOGITS[:, :, :counted], labels[:, :counted]
    assert mean_score(is_correct, LOGITS, labels) == pytest.approx(np.mean(logits.argmax(1) == kept))
    probabilities = softmax(logits.astype(np.float64), axis=1).transpose(0, 2, 1).reshape(-1, V)
    expected = log_loss(kept.ravel(), probabilities)
    assert mean_score(cross_entropy, LOGITS, labels) == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_each_sample_is_its_share_of_the_mean() -> None:
    labels = WORDS.copy()
    labels[2:, 3:] = IGNORED
    losses = sample_scores(cross_entropy, LOGITS, labels)
    log_shares = log_softmax(LOGITS.astype(np.float64), axis=1)
    sums = [-sum(log_shares[i, labels[i, j], j] for j in range(T) if labels[i, j] != IGNORED) for i in range(N)]
    np.testing.assert_allclose(losses, np.array(sums) / np.mean((labels != IGNORED).sum(1)), rtol=1e-5)
    assert losses.mean() == pytest.approx(mean_score(cross_entropy, LOGITS, labels), rel=1e-6)


@pytest.mark.parametrize("score", [is_correct, cross_entropy])
@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        (LOGITS, np.zeros((N, T), np.float32), r"the labels are Float32 of the shape \(3, 5\), but only whole numbers"),
        (LOGITS, np.zeros(N, np.int32), r"logits of the shape \(3, 4, 5\) for labels of the shape \(3,\)"),
        (LOGITS, np.zeros((N, V), np.int32), r"logits of the shape \(3, 4, 5\) for labels of the shape \(3, 4\)"),
        (LOGITS[:, 0, 0], np.zeros(N, np.int32), r"logits of the shape \(3,\) for labels"),
        (
            LOGITS,
            np.full((N, T), V, np.int32),
            "a sample has the label 4, but the network has 4 outputs, for the",
        ),
        (LOGITS, np.full((N, T), -1, np.int32), "a sample has the label -1, .* mark items to ignore with -100"),
    ],
)
def test_labels_that_can_not_be_classified_are_refused(
    score: Score, logits: np.ndarray, labels: np.ndarray, said: str
) -> None:
    network = nn.SequentialCell(nn.Identity()).set_train(True)
    with pytest.raises(DataError, match=said):
        mean_score(score, logits, labels, network=network)
    assert network.training


@pytest.mark.parametrize("part", [np.s_[:], np.s_[:, 0]], ids=["of places", "of samples"])
def test_the_loss_of_the_samples_is_in_the_mean_the_loss_that_is_trained_by(part: Any) -> None:
    outputs, labels = OUTPUTS[part], LABELS[part]
    mean = float(nn.MSELoss(reduction="mean")(Tensor(outputs), Tensor(labels)).asnumpy())
    of_samples = sample_scores(nn.MSELoss(reduction="none"), outputs, labels)
    np.testing.assert_allclose(of_samples, ((outputs - labels) ** 2).reshape(N, -1).mean(1), rtol=1e-5)
    assert of_samples.mean() == pytest.approx(mean, rel=1e-6)


def test_what_is_not_counted_is_left_out_and_what_is_not_a_number_is_not_hidden() -> None:
    counted = RNG.random((N, T)) < 0.6
    values = np.where(counted, np.abs(OUTPUTS - LABELS), np.nan)

    def score(outputs: Tensor, labels: Tensor) -> Any:
        of_batch = np.isin(LABELS, labels.asnumpy()).all(1)
        return values[of_batch], counted[of_batch]

    assert mean_score(score, OUTPUTS, LABELS) == pytest.approx(np.nanmean(values))
    counted[1, 1], values[1, 1] = True, np.nan
    assert np.isnan(mean_score(score, OUTPUTS, LABELS))


@pytest.mark.parametrize(
    ("score", "outputs", "said"),
    [
        (nn.MSELoss(), OUTPUTS[:, :1], "it must give one for each item"),
        (
            lambda outputs, labels: abs(outputs - labels),
            OUTPUTS[:, :1],
            r"the shape \(3, 3\), which is more numbers than .* \(3, 1\) and \(3,\); give them the same",
        ),
        (lambda outputs, labels: outputs.reshape(-1), OUTPUTS, "its first axis must be the 3 samples"),
    ],
)
def test_what_is_not_one_value_for_each_item_is_refused(score: Any, outputs: np.ndarray, said: str) -> None:
    """A mean over a batch would overweight a small last batch, and n x n pairs are no errors."""
    with pytest.raises(ConfigError, match=said):
        mean_score(score, outputs, LABELS[:, 0])


@pytest.mark.parametrize("measured", [mean_score, sample_scores])
def test_a_split_without_a_label_that_counts_is_refused(measured: Any) -> None:
    with pytest.raises(DataError, match="no item of the split counts"):
        measured(cross_entropy, LOGITS, np.full_like(WORDS, IGNORED))


def test_the_last_column_is_the_label_of_several_inputs() -> None:
    class Sum(nn.Cell):
        def construct(self, first: Tensor, second: Tensor) -> Tensor:
            return first + second

    found = mean_score(nn.L1Loss(reduction="none"), OUTPUTS, 2 * OUTPUTS, LABELS, network=Sum())
    assert found == pytest.approx(np.abs(3 * OUTPUTS - LABELS).mean())


def test_every_cell_is_put_back_into_its_own_mode() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    network = nn.SequentialCell(nn.Dropout(p=0.5), nn.SequentialCell(nn.Dropout(p=0.5), nn.Identity()))
    network.set_train(True)
    network[1].set_train(False)
    modes = [cell.training for _, cell in network.cells_and_names()]
    assert len(set(modes)) == 2
    found = mean_score(nn.L1Loss(reduction="none"), OUTPUTS, LABELS, network=network)
    assert found == pytest.approx(np.abs(OUTPUTS - LABELS).mean())
    assert [cell.training for _, cell in network.cells_and_names()] == modes
    assert (network(Tensor(OUTPUTS)).asnumpy() == 0).any()  # a graph that was compiled for measuring is not used again


def test_scores_may_be_of_a_type_that_numpy_does_not_know() -> None:
    labels = Tensor(LABELS)
    sums, counts = sums_and_counts(lambda outputs, labels: outputs, Tensor(OUTPUTS).astype(ms.bfloat16), labels)
    np.testing.assert_allclose(sums, OUTPUTS.sum(1), atol=0.1)
    assert counts.tolist() == [T] * N


def test_the_metric_of_the_tutorial_is_a_score() -> None:
    text = (REPOSITORY / "pipelines" / "TUTORIAL.md").read_text(encoding="utf-8")
    made: dict[str, Any] = {}
    exec(text.partition("## Not a classifier?")[2].partition("```python\n")[2].partition("```")[0], made)
    found = mean_score(made["absolute_error"](), OUTPUTS, LABELS)
    assert found == pytest.approx(np.abs(OUTPUTS - LABELS).mean())
