"""The mean of any loss or metric over all items on all ranks; and the built-in loss and metrics for a classifier.

The built-in ones take logits (n, n_classes) for n labels, or (n, n_classes, ...) for labels (n, ...), such as one for
each position in a text, and give one number per label. Labels equal to ``IGNORED`` are left out, as in MindSpore's
cross entropy.
"""

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype

from dimred.data.labels import IGNORED, check_labels
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, DataError

_WHOLE_NUMBERS = (mstype.bool_, *mstype.int_type, *mstype.uint_type)


# (outputs, labels) -> values, or (values, counts): one value for each item in each sample, (n, ...), as a Tensor or an
# array, the samples first; ``counts`` is false for items that are left out, such as padding in a text.
Score = Callable[[Any, Tensor], Any]


def is_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether the class with the highest logit is the label.

    Args:
        logits: (n, n_classes, ...).
        labels: whole numbers, (n, ...).

    Returns:
        Whether each label was predicted, and whether it counts, (n, ...) bool each.

    Raises:
        DataError: the labels are not classes of the network, or their shape does not fit the logits.
    """
    labels = class_labels(logits, labels)
    return ops.equal(ops.argmax(logits, 1).astype(ms.int32), labels), ops.not_equal(labels, IGNORED)


def is_among_five(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether the label is among the five classes with the highest logits, and whether it counts.

    Arguments, shapes and errors are as for ``is_correct``.
    """
    labels = class_labels(logits, labels)
    _, highest = ops.topk(logits.astype(ms.float32), min(5, logits.shape[1]), dim=1)
    return ops.equal(highest.astype(ms.int32), labels.expand_dims(1)).any(1), ops.not_equal(labels, IGNORED)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return each label's cross entropy.

    With smoothing s it is -(1 - s) log p(label) - s mean(log p) over the classes. On a small held-out split it can tell
    apart two networks that accuracy can't, because it measures how sure the network was, not only which class won.

    Args:
        logits, labels: as for ``is_correct``.
        label_smoothing: s, at least 0 and below 1.

    Returns:
        The values, float32, and whether each label counts, bool, (n, ...) each; raises as ``is_correct`` does.
    """
    labels = class_labels(logits, labels)
    values = ops.cross_entropy(
        logits.astype(ms.float32), labels, ignore_index=IGNORED, reduction="none", label_smoothing=label_smoothing
    )
    return values, ops.not_equal(labels, IGNORED)


def class_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the labels as int32; raises as ``is_correct`` does."""
    if labels.dtype not in _WHOLE_NUMBERS:
        raise DataError(
            f"the labels are {labels.dtype} of the shape {labels.shape}, but only whole numbers can be counted as "
            "classes; for a regression, set loss and metric"
        )
    if len(logits.shape) < 2 or logits.shape[:1] + logits.shape[2:] != labels.shape:
        raise DataError(
            f"the network gives logits of the shape {logits.shape} for labels of the shape {labels.shape}; logits must "
            "be (n, n_classes) for labels (n,), or (n, n_classes, ...) for labels (n, ...)"
        )
    labels = labels.astype(ms.int32)
    check_labels(labels.asnumpy(), logits.shape[1], "a sample")
    return labels


# For each batch: sums over each sample's items that count, and how many these are, (n,) each.
BatchSums = list[tuple[np.ndarray, np.ndarray]]


def mean_of_items(sums_of_batches: BatchSums, ranks: Ranks = ALONE) -> float:
    """Compute a score's mean over all items that count, on all ranks.

    Args:
        sums_of_batches: this score's sums for each of this rank's batches, from ``sums_and_counts``.
        ranks: the job's ranks; they may have different numbers of samples.

    Raises:
        DataError: no item counts.
    """
    total = sum((np.array([sums.sum(), counts.sum()]) for sums, counts in sums_of_batches), np.zeros(2))
    score, n_items = ranks.gather(total).sum(0)
    return float(score) / _at_least_one(n_items)


def means_of_samples(sums_of_batches: BatchSums, ranks: Ranks = ALONE) -> np.ndarray:
    """Compute the score of each sample on all ranks, float32 (n,), in the same order on each rank.

    A sample's score is the sum over its items, divided by the mean number of items per sample. So the mean over the
    samples is the mean over the items, while the samples remain independent of each other.

    Args:
        sums_of_batches, ranks: as for ``mean_of_items``.

    Raises:
        DataError: no item counts.
    """
    of_rank = np.concatenate([np.zeros((2, 0)), *map(np.array, sums_of_batches)], axis=1)  # sums, counts
    sizes = ranks.gather([of_rank.shape[1]])[:, 0].astype(int)
    first = sizes[: ranks.rank].sum()
    everything = np.zeros((2, sizes.sum()), np.float32)
    everything[:, first : first + of_rank.shape[1]] = of_rank
    sums, counts = ranks.sum(everything)
    _at_least_one(counts.sum())
    return sums / counts.mean()


def _at_least_one(n_items: float) -> float:
    if not n_items:
        raise DataError("no item of the split counts: the split is empty, or all of its labels are ignored")
    return float(n_items)


def values_of(score: Score, outputs: Any, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return a score's values for a batch, float32, and whether each counts, bool, in the same shape."""
    result = score(copies(outputs), copies(labels))
    values, is_item = result if isinstance(result, tuple) else (result, True)
    values, is_item = np.broadcast_arrays(on_host(values), on_host(is_item) != 0)
    return values, is_item


def sums_and_counts(score: Score, outputs: Any, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Compute a score on a batch, and return for each sample the sum and the number of the items that count.

    Sums and counts are float64 (n,) each; ConfigError if there is not one value for each item; see ``misfit``.
    """
    values, is_item = values_of(score, outputs, labels)
    if wrong := misfit(values.shape, outputs, labels):
        raise ConfigError(f"loss or metric can't be used: {wrong}")
    within = tuple(range(1, values.ndim))
    return np.where(is_item, values, 0).sum(within, dtype=np.float64), is_item.sum(within, dtype=np.float64)


def misfit(shape: tuple[int, ...], outputs: Any, labels: Tensor) -> str | None:
    """Return a sentence that says why values of this shape aren't one for each item, (n, ...); None if they are.

    Outputs (n, 1) and labels (n,) broadcast to (n, n): every output is compared with every label, and the mean is
    meaningless. Such values are noticed because they outnumber both the outputs and the labels.

    Args:
        shape: the shape of the values that a loss or a metric returned.
        outputs: the network's outputs, a Tensor or several.
        labels: (n, ...).
    """
    if not shape:
        return (
            "it gives a single number for a batch; it must give one for each item, (n, ...), so that batches of any "
            'size count correctly (in MindSpore: reduction="none")'
        )
    n_samples = len(labels)
    if shape[0] != n_samples:
        return f"it gives the shape {shape}; its first axis must be the {n_samples} samples"
    parts = [*(outputs if isinstance(outputs, tuple | list) else [outputs]), labels]
    if math.prod(shape) > max(math.prod(part.shape) for part in parts):
        return (
            f"it gives the shape {shape}, which is more numbers than there are outputs or labels: their shapes are "
            f"{' and '.join(str(tuple(part.shape)) for part in parts)}; give them the same shape"
        )
    return None


def copies(values: Any) -> Any:
    """Copy a Tensor, or each of several, for a user's code, which may change its arguments in place."""
    if isinstance(values, tuple | list):
        return tuple(copies(value) for value in values)
    return values.copy() if isinstance(values, Tensor) else values


def on_host(value: Any) -> np.ndarray:
    """Convert a Tensor of any type, or anything that NumPy converts, to a float32 array."""
    return np.asarray(value.astype(ms.float32).asnumpy() if isinstance(value, Tensor) else value, np.float32)
