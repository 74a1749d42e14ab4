"""A small, hard, real image task without a download: scikit-learn's handwritten digits, shifted and covered with noise.

The 1,797 scans of 8 x 8 pixels (UCI optical recognition of handwritten digits) are split *by scan* first, so that no
scan has variants in two splits. Each variant places its scan at a random position of a larger field and adds noise.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dimred.data.image_tree import check_seed, new_image_tree, save_image
from dimred.errors import DataError

FIELD = 16
N_CLASSES = 10
_SCAN_MAXIMUM = 16.0


@dataclass(frozen=True)
class Split:
    """How many scans a split gets, and how many noisy variants of each."""

    name: str
    n_scans: int
    n_variants: int


SPLITS = (Split("train", 1197, 4), Split("val", 200, 5), Split("test", 400, 10))


def write_digits(out: Path, seed: int = 1, noise: float = 0.32, label_noise: float = 0.0) -> dict[str, int]:
    """Write ``train/<digit>/*.png``, ``val/...`` and ``test/...`` under ``out``; the same seed gives the same bytes.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: of the split, the shifts and the noise; 0 or more.
        noise: standard deviation of the pixel noise, as a share of the scan's full intensity.
        label_noise: share of the *training* images that go to a class drawn at random; val and test stay clean.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already or can't be written, or a number is out of range. Nothing is left
            behind.
    """
    check_seed(seed)
    if not 0 <= label_noise <= 1:
        raise DataError(f"--label-noise is {label_noise}; it must lie between 0 and 1")
    with new_image_tree(out) as folder:
        return _write_splits(folder, seed, noise, label_noise)


def _write_splits(folder: Path, seed: int, noise: float, label_noise: float) -> dict[str, int]:
    digits = load_digits()
    scans = digits.images / _SCAN_MAXIMUM
    order = np.random.default_rng([seed, 0]).permutation(len(scans))
    first = 0
    counts = {}
    for number, split in enumerate(SPLITS, start=1):
        rng = np.random.default_rng([seed, number])
        labels = np.random.default_rng([seed, number, 1])
        for scan in order[first : first + split.n_scans]:
            for variant in range(split.n_variants):
                label = digits.target[scan]
                if split.name == "train" and labels.random() < label_noise:
                    label = labels.integers(N_CLASSES)
                path = folder / split.name / str(label) / f"scan{scan:04d}_{variant:02d}.png"
                save_image(_noisy_field(scans[scan], noise, rng), path)
        first += split.n_scans
        counts[split.name] = split.n_scans * split.n_variants
    return counts


def _noisy_field(scan: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """One variant, (FIELD, FIELD): the scan at a random position, noise on all pixels, mid-grey background."""
    height, width = scan.shape
    field = np.zeros((FIELD, FIELD))
    top = rng.integers(0, FIELD - height + 1)
    left = rng.integers(0, FIELD - width + 1)
    field[top : top + height, left : left + width] = scan
    field += rng.normal(0.0, noise, field.shape)
    return 64.0 + 128.0 * field
