"""What a classifier predicts for each sample, its accuracy in each class, and which classes it confuses."""

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from dimred.data.labels import IGNORED
from dimred.distributed.ranks import ALONE, Ranks
from dimred.evaluation.measures import Measure, rows_of_split
from dimred.evaluation.scores import class_labels


class Predictions(NamedTuple):
    """What a classifier predicts for each item in a split, in the split's order.

    Attributes:
        labels: the right classes, int32 (n, ...), ``IGNORED`` for items that don't count.
        classes: the classes with the highest logit, int32 (n, ...).
        probabilities: softmax of that logit, float32 (n, ...).
    """

    labels: np.ndarray
    classes: np.ndarray
    probabilities: np.ndarray


class Predict(Measure[Predictions]):
    """The predictions of a classifier, whose outputs are logits (n, n_classes, ...) for labels (n, ...)."""

    def of_batch(self, outputs: Any, labels: Tensor) -> tuple[np.ndarray, ...]:
        """Return labels, predicted classes and their probabilities.

        Raises:
            DataError: the labels are not classes, or their shape does not fit the logits.
        """
        logits = outputs.astype(ms.float32)
        labels = class_labels(outputs, labels)
        classes = ops.argmax(logits, 1).astype(ms.int32)
        probabilities = ops.amax(ops.softmax(logits, 1), 1)
        return labels.asnumpy(), classes.asnumpy(), probabilities.asnumpy()

    def of_split(self, kept: list[tuple[np.ndarray, ...]], ranks: Ranks = ALONE) -> Predictions:
        return Predictions(*rows_of_split(kept, ranks))


class ClassCounts(NamedTuple):
    """How often each class was right.

    Attributes:
        n_items: number of items in each class, (n_classes,).
        n_correct: how many of these were classified correctly, (n_classes,).
        confusions: (label, predicted class, how often), the most frequent first; ties by class, the lower first.
    """

    n_items: np.ndarray
    n_correct: np.ndarray
    confusions: list[tuple[int, int, int]]


def count_classes(predictions: Predictions, n_classes: int) -> ClassCounts:
    """Count the items in each class, the correct predictions, and the confusions.

    Args:
        predictions: the predictions; ignored items don't count.
        n_classes: the network's number of outputs.
    """
    counts = predictions.labels != IGNORED
    labels = predictions.labels[counts].astype(np.int64)
    classes = predictions.classes[counts]
    n_items, n_correct = (np.bincount(part, minlength=n_classes) for part in (labels, labels[labels == classes]))
    is_wrong = labels != classes
    codes, numbers = np.unique(labels[is_wrong] * n_classes + classes[is_wrong], return_counts=True)
    order = np.argsort(-numbers, kind="stable")
    pairs = zip(codes[order].tolist(), numbers[order].tolist(), strict=True)
    return ClassCounts(n_items, n_correct, [(*divmod(code, n_classes), number) for code, number in pairs])


def predictions_as_csv(predictions: Predictions, samples: Sequence[str], names: Sequence[str]) -> str:
    """Return a header, and one line for each sample: its name, label, prediction, and the prediction's probability.

    The label of a sample that doesn't count is empty. A class without a name is given by its number.

    Args:
        predictions: the predictions, with one label for each sample, (n,).
        samples: the samples' names.
        names: the classes' names.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("sample", "label", "prediction", "probability"))
    for sample, label, predicted, probability in zip(samples, *predictions, strict=True):
        right = "" if label == IGNORED else class_name(label, names)
        lines.writerow((sample, right, class_name(predicted, names), f"{probability:.6g}"))
    return text.getvalue()


def class_name(number: int, names: Sequence[str]) -> str:
    """Return the name of a class, or its number if it has none."""
    return names[number] if number < len(names) else str(number)
