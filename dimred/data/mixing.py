"""Mixup and cutmix: each training sample is mixed with another one in its batch, and so is its label."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dimred.errors import DataError

_DRAWS = 2  # keeps these random numbers apart from an epoch's order (no number) and augmentation (1)


@dataclass(frozen=True)
class Mixing:
    """How the samples of a batch are mixed: their first inputs and their labels.

    With a permutation p of the batch's rows and one l for the whole batch::

        x_i <- l x_i + (1 - l) x_p(i)     y_i <- l y_i + (1 - l) y_p(i)

    for mixup (Zhang et al., 2018, arXiv 1710.09412), l from Beta(mixup, mixup). For cutmix (Yun et al., 2019, arXiv
    1905.04899) a box of x_p(i) replaces the same box of x_i. With l from Beta(cutmix, cutmix), the box covers
    sqrt(1 - l) of the height and of the width around a uniform centre, and is cut at the image's edges; the labels'
    l is the fraction of pixels outside it. With both, each batch draws one of the two with equal probability.

    The random numbers depend only on the seed, the epoch, the rank and the batch's number. So a resumed run has the
    same ones, whichever thread reads the batch.

    Attributes:
        n_classes: outputs of the network.
        mixup: parameter of mixup's Beta distribution; None for no mixup.
        cutmix: parameter of cutmix's Beta distribution; None for no cutmix.
    """

    n_classes: int
    mixup: float | None = None
    cutmix: float | None = None

    def mixed(self, inputs: np.ndarray, labels: np.ndarray, numbers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Mix a batch.

        Args:
            inputs: (n, ...) floats; for cutmix images, (n, channels, height, width).
            labels: classes, whole numbers (n,), or a probability for each class, (n, n_classes).
            numbers: seed, epoch, rank, and the batch's number in its epoch.

        Returns:
            The mixed inputs, float32 in their shape, and the probability of each class, float32 (n, n_classes).

        Raises:
            DataError: the inputs or the labels can't be mixed.
        """
        targets = self._probabilities(labels)
        if inputs.dtype.kind != "f":
            raise DataError(f"the inputs are {inputs.dtype} {inputs.shape}, but only floats can be mixed; {_REMEDY}")
        rng = np.random.default_rng([*numbers, _DRAWS])
        partners = rng.permutation(len(inputs))
        mix, parameter = self._draw_way(rng)
        mixed, kept = mix(inputs, inputs[partners], rng.beta(parameter, parameter), rng)
        targets = kept * targets + (1 - kept) * targets[partners]
        return mixed.astype(np.float32), targets.astype(np.float32)

    def _draw_way(self, rng: np.random.Generator) -> "tuple[_Way, float]":
        """Return the way to mix a batch, and the parameter of its Beta distribution."""
        ways = [(_blended, self.mixup), (_with_boxes, self.cutmix)]
        chosen = [(way, parameter) for way, parameter in ways if parameter is not None]
        return chosen[rng.integers(len(chosen))]

    def _probabilities(self, labels: np.ndarray) -> np.ndarray:
        """Return the probability of each class, float64 (n, n_classes)."""
        if labels.dtype.kind == "f" and labels.shape[1:] == (self.n_classes,):
            return labels.astype(np.float64)
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise DataError(
                f"the labels are {labels.dtype} {labels.shape}, but only classes (n,) or a probability for each of the "
                f"{self.n_classes} classes can be mixed; {_REMEDY}"
            )
        wrong = labels[(labels < 0) | (labels >= self.n_classes)]
        if wrong.size:
            raise DataError(f"there is the label {wrong[0]}, which is not a class and can't be mixed; {_REMEDY}")
        return np.eye(self.n_classes)[labels]


_REMEDY = "set mixing.mixup and mixing.cutmix to null"
# (inputs, their partners, l, random numbers) -> the mixed inputs, and the weight of the inputs themselves
_Way = Callable[[np.ndarray, np.ndarray, float, np.random.Generator], tuple[np.ndarray, float]]


def _blended(inputs: np.ndarray, others: np.ndarray, kept: float, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return kept * inputs + (1 - kept) * others."""
    return kept * inputs + (1 - kept) * others, kept


def _with_boxes(
    images: np.ndarray, others: np.ndarray, kept: float, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Copy the same box of the others into all images; return the images and the fraction of pixels outside the box."""
    if images.ndim != 4:
        raise DataError(f"the inputs have the shape {images.shape}, but cutmix needs images; set mixing.cutmix to null")
    height, width = images.shape[2:]
    rows = _span(rng.integers(height), height, kept)
    columns = _span(rng.integers(width), width, kept)
    mixed = images.copy()
    mixed[:, :, rows, columns] = others[:, :, rows, columns]
    in_box = (rows.stop - rows.start) * (columns.stop - columns.start)
    return mixed, 1 - in_box / (height * width)


def _span(centre: Any, length: int, kept: float) -> slice:
    """Return where a box begins and ends along a side: sqrt(1 - kept) of it around the centre, cut at the edges."""
    half = int(length * np.sqrt(1 - kept)) // 2
    return slice(max(int(centre) - half, 0), min(int(centre) + half, length))
