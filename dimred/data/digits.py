"""The built-in task: scikit-learn's scans of digits as class folders of images.

The digits are a small, hard, real task without a download. scikit-learn's 1,797 scans of 8 x 8 pixels (UCI optical
recognition of handwritten digits) are split *by scan* first, so that no scan has variants in two splits. Each variant
places its scan at a random position in a larger field and adds noise.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from dimred.errors import DataError
from dimred.io.atomic import atomic_folder, make_folder, remove_leftovers, writable

FIELD = 16
N_CLASSES = 10
# split: number of scans, noisy variants of each
SPLITS = {"train": (1197, 4), "val": (200, 5), "test": (400, 10)}
_SCAN_MAXIMUM = 16.0


def write_image_tree(out: Path, images: Iterable[tuple[str, str, str, np.ndarray]]) -> dict[str, int]:
    """Write PNG files ``out/<split>/<class>/<name>.png``: all of them or, after an error, none.

    Args:
        out: a folder that does not exist yet, or is empty.
        images: tuples (split, class, name, pixels). The pixels, (height, width) or (height, width, 3) on the 0 to 255
            scale, are rounded and clipped.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already.
        ConfigError: ``out`` can't be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"OUT is {str(out)!r}, which exists already; name a new folder, or remove that one first")
    counts: Counter[str] = Counter()
    with writable("OUT", out):
        make_folder(out.parent)
        remove_leftovers(out.parent)
        with atomic_folder(out) as folder:
            for split, class_name, name, pixels in images:
                path = folder / split / class_name / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8)).save(path)
                counts[split] += 1
    return dict(counts)


def write_digits(out: Path, seed: int = 1, noise: float = 0.32, label_noise: float = 0.0) -> dict[str, int]:
    """Write ``train/<digit>/*.png``, ``val/...`` and ``test/...`` under ``out``; the same seed gives the same bytes.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: determines the split, the shifts, the noise and the wrong labels.
        noise: standard deviation of the pixel noise, as a fraction of a scan's full intensity.
        label_noise: fraction of the *training* images that go to a class drawn at random; val and test stay clean.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already.
        ConfigError: ``out`` can't be written; nothing is left behind.
    """
    return write_image_tree(out, _images(seed, noise, label_noise))


def _images(seed: int, noise: float, label_noise: float) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Yield (split, digit, name, pixels) for every image."""
    from sklearn.datasets import load_digits  # may be missing

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
    """Return one variant, (FIELD, FIELD): the scan at a random place on dark grey (64), with noise on all pixels."""
    height, width = scan.shape
    field = np.zeros((FIELD, FIELD))
    top = rng.integers(0, FIELD - height + 1)
    left = rng.integers(0, FIELD - width + 1)
    field[top : top + height, left : left + width] = scan
    field += rng.normal(0.0, noise, field.shape)
    return 64.0 + 128.0 * field
