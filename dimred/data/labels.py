"""A classifier's labels."""

import numpy as np

from dimred.errors import DataError

IGNORED = -100  # the label of items that do not count, as in MindSpore's cross entropy


def check_labels(labels: np.ndarray, n_classes: int, sample: str) -> None:
    """Check that whole numbers are a network's classes, or ``IGNORED``.

    Args:
        labels: the numbers.
        n_classes: the number of classes.
        sample: what the message calls the sample with these labels.

    Raises:
        DataError: a number is neither.
    """
    wrong = labels[((labels < 0) | (labels >= n_classes)) & (labels != IGNORED)]
    if wrong.size:
        raise DataError(
            f"{sample} has the label {wrong[0]}, but the network has {n_classes} outputs, for the classes 0 to "
            f"{n_classes - 1}; correct the label, or mark items to ignore with {IGNORED}; for a new network, "
            f"raise model.n_classes; if WEIGHTS were trained with {n_classes}, these data do not belong to them"
        )
