"""The scores that a classifier has: cross entropy, and whether its first choice is right.

Both are of logits (n, n_classes) for n labels, or (n, n_classes, ...) for labels (n, ...), such as one for each place
of a text, and give a number for each label. Labels of ``IGNORED`` are left out, as MindSpore's cross entropy does.
"""

import mindspore as ms
from mindspore import Tensor, ops
from mindspore import dtype as mstype

from dimred.errors import DataError

IGNORED = -100
_WHOLE = (mstype.bool_, *mstype.int_type, *mstype.uint_type)


def is_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the class with the highest logit is the label; and which labels count.

    Raises:
        DataError: the labels are no classes, or not one for each of the network's decisions.
    """
    labels = _classes(logits, labels)
    return ops.equal(ops.argmax(logits, 1).astype(ms.int32), labels), ops.not_equal(labels, IGNORED)


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """-log p(label) of each label, without label smoothing; and which labels count.

    On a small held-out split it tells two networks apart that accuracy can't: a label counts by how sure the network
    was, not only by whether it crossed a border.

    Raises:
        DataError: as ``is_correct``.
    """
    labels = _classes(logits, labels)
    values = ops.cross_entropy(logits.astype(ms.float32), labels, ignore_index=IGNORED, reduction="none")
    return values, ops.not_equal(labels, IGNORED)


def _classes(logits: Tensor, labels: Tensor) -> Tensor:
    """The labels as int32."""
    if labels.dtype not in _WHOLE:
        raise DataError(
            f"the labels are {labels.dtype} of the shape {labels.shape}, but only whole numbers can be counted as "
            "classes; for a regression set loss and metric"
        )
    if len(logits.shape) < 2 or logits.shape[:1] + logits.shape[2:] != labels.shape:
        raise DataError(
            f"the network gives logits of the shape {logits.shape} for labels of the shape {labels.shape}; logits must "
            "be (n, n_classes) for labels (n,), or (n, n_classes, ...) for labels (n, ...)"
        )
    labels = labels.astype(ms.int32)
    values, n_classes = labels.asnumpy(), logits.shape[1]
    wrong = values[((values < 0) | (values >= n_classes)) & (values != IGNORED)]
    if wrong.size:
        raise DataError(
            f"there is the label {wrong[0]}, but the network has {n_classes} outputs, for the classes 0 to "
            f"{n_classes - 1}; correct the label, raise model.n_classes, or mark what is to be ignored with {IGNORED}"
        )
    return labels
