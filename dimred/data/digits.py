"""A small, hard, real image task without a download: scikit-learn's handwritten digits, shifted and covered with noise.

The 1,797 scans of 8 x 8 pixels (UCI optical recognition of handwritten digits) are split *by scan* first, so that no
scan has variants in two splits. Each variant places its scan at a random position of a larger field and adds noise.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dimred.data.image_tree import write_image_tree

FIELD = 16
N_CLASSES = 10
# name: scans, noisy variants of each
SPLITS = {"train": (1197, 4), "val": (200, 5), "test": (400, 10)}
_SCAN_MAXIMUM = 16.0


def write_digits(out: Path, seed: int = 1, noise: float = 0.32, label_noise: float = 0.0) -> dict[str, int]:
    """Write ``train/<digit>/*.png``, ``val/...`` and ``test/...`` under ``out``; the same seed gives the same bytes.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: of the split, the shifts and the noise.
        noise: standard deviation of the pixel noise, as a share of the scan's full intensity.
        label_noise: share of the *training* images that go to a class drawn at random; val and test stay clean.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already; ConfigError: it can't be written. Nothing is left behind.
    """
    return write_image_tree(out, _images(seed, noise, label_noise))


def _images(seed: int, noise: float, label_noise: float) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Yield (split, digit, name, pixels) of every image."""
    digits = load_digits()
    scans = digits.images / _SCAN_MAXIMUM
    order = iter(np.random.default_rng([seed, 0]).permutation(len(scans)))
    for number, (split, (n_scans, n_variants)) in enumerate(SPLITS.items(), start=1):
        rng = np.random.default_rng([seed, number])
        labels = np.random.default_rng([seed, number, 1])
        for _ in range(n_scans):
            scan = next(order)
            for variant in range(n_variants):
                label = digits.target[scan]
                if split == "train" and labels.random() < label_noise:
                    label = labels.integers(N_CLASSES)
                yield split, str(label), f"scan{scan:04d}_{variant:02d}", _noisy_field(scans[scan], noise, rng)


def _noisy_field(scan: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Return one variant, (FIELD, FIELD): the scan at a random position, noise on all pixels, mid-grey background."""
    height, width = scan.shape
    field = np.zeros((FIELD, FIELD))
    top = rng.integers(0, FIELD - height + 1)
    left = rng.integers(0, FIELD - width + 1)
    field[top : top + height, left : left + width] = scan
    field += rng.normal(0.0, noise, field.shape)
    return 64.0 + 128.0 * field
