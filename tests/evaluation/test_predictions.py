"""Predictions, accuracies of classes and confusions equal those of NumPy and scikit-learn."""

import csv
import io

import numpy as np
import pytest
from mindspore import Tensor, dataset, nn
from scipy.special import softmax
from sklearn.metrics import confusion_matrix

from dimred.data.labels import IGNORED
from dimred.errors import DataError
from dimred.evaluation.measures import measure_batches
from dimred.evaluation.predictions import Predict, Predictions, count_classes, predictions_as_csv

RNG = np.random.default_rng(3)
N, C, T = 23, 4, 3


def predicted(logits: np.ndarray, labels: np.ndarray) -> Predictions:
    """Predict in uneven batches, by a network whose outputs are its inputs."""
    batches = dataset.NumpySlicesDataset((logits, labels), shuffle=False).batch(5)
    measure = Predict()
    [kept], _ = measure_batches(nn.Identity(), batches, [measure])
    return measure.of_split(kept)


@pytest.mark.parametrize("shape", [(N,), (N, T)], ids=["one label a sample", "three"])
def test_a_prediction_is_the_class_with_the_highest_logit_and_its_softmax(shape: tuple[int, ...]) -> None:
    logits = RNG.normal(size=(N, C, *shape[1:])).astype(np.float32)
    labels = RNG.integers(0, C, shape).astype(np.int32)
    labels[2] = IGNORED
    found = predicted(logits, labels)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.classes, logits.argmax(1))
    np.testing.assert_allclose(found.probabilities, softmax(logits.astype(np.float64), axis=1).max(1), rtol=1e-5)
    counts = count_classes(found, C + 1)
    kept = labels != IGNORED
    matrix = confusion_matrix(labels[kept], logits.argmax(1)[kept], labels=range(C + 1))
    np.testing.assert_array_equal(counts.n_items, matrix.sum(1))
    np.testing.assert_array_equal(counts.n_correct, matrix.diagonal())
    wrong = {(label, other): n for label, other, n in counts.confusions}
    assert wrong == {(i, j): matrix[i, j] for i in range(C) for j in range(C) if i != j and matrix[i, j]}
    numbers = [n for *_, n in counts.confusions]
    assert numbers == sorted(numbers, reverse=True)


def test_labels_that_are_no_classes_have_no_predictions() -> None:
    logits = RNG.normal(size=(N, C)).astype(np.float32)
    with pytest.raises(DataError, match="only whole numbers can be counted as classes"):
        predicted(logits, RNG.normal(size=N).astype(np.float32))
    with pytest.raises(DataError, match="the label 4, but the network has 4 outputs"):
        Predict().of_batch(Tensor(logits), Tensor(np.full(N, 4, np.int32)))


def test_a_line_has_names_where_there_are_names_and_no_label_where_none_counts() -> None:
    found = Predictions(np.array([0, IGNORED, 2]), np.array([1, 0, 2]), np.array([0.5, 1.0, 0.123456789]))
    text = predictions_as_csv(found, ['a "quoted", name.png', "1", "2"], ["cat", "dog"])
    assert [*csv.reader(io.StringIO(text))] == [
        ["sample", "label", "prediction", "probability"],
        ['a "quoted", name.png', "cat", "dog", "0.5"],
        ["1", "", "cat", "1"],
        ["2", "2", "2", "0.123457"],
    ]
