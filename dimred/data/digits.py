"""A small, hard, real image task without a download: scikit-learn's handwritten digits, shifted and covered with noise.

The 1,797 scans of 8 x 8 pixels (UCI optical recognition of handwritten digits) are split *by scan* first, so that no
scan has variants in two splits. Each variant places its scan at a random position of a larger field and adds noise.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from dimred.errors import DataError

FIELD = 16
_SCAN_MAXIMUM = 16.0


@dataclass(frozen=True)
class Split:
    """How many scans a split gets, and how many noisy variants of each."""

    name: str
    n_scans: int
    n_variants: int


SPLITS = (Split("train", 1197, 4), Split("val", 200, 5), Split("test", 400, 10))


def write_digits(out: Path, seed: int = 1, noise: float = 0.32) -> dict[str, int]:
    """Write ``train/<digit>/*.png``, ``val/...`` and ``test/...`` under ``out``; the same seed gives the same bytes.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: of the split, the shifts and the noise; 0 or more.
        noise: standard deviation of the pixel noise, as a share of the scan's full intensity.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already, can't be written, or the seed is negative. Nothing is left behind.
    """
    if seed < 0:
        raise DataError(f"--seed is {seed}; it must be 0 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"OUT is {str(out)!r}, which exists already; name a new folder, or remove that one first")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise DataError(
            f"OUT is {str(out)!r}, which can't be written ({error.strerror}); name another folder"
        ) from error
    try:
        counts = _write_splits(unfinished, seed, noise)
        unfinished.chmod(0o755)
        if out.exists():
            out.rmdir()
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return counts


def _write_splits(folder: Path, seed: int, noise: float) -> dict[str, int]:
    digits = load_digits()
    scans = digits.images / _SCAN_MAXIMUM
    order = np.random.default_rng([seed, 0]).permutation(len(scans))
    first = 0
    counts = {}
    for number, split in enumerate(SPLITS, start=1):
        rng = np.random.default_rng([seed, number])
        for scan in order[first : first + split.n_scans]:
            class_folder = folder / split.name / str(digits.target[scan])
            class_folder.mkdir(parents=True, exist_ok=True)
            for variant in range(split.n_variants):
                pixels = _noisy_field(scans[scan], noise, rng)
                Image.fromarray(pixels).save(class_folder / f"scan{scan:04d}_{variant:02d}.png")
        first += split.n_scans
        counts[split.name] = split.n_scans * split.n_variants
    return counts


def _noisy_field(scan: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """One variant, (FIELD, FIELD) uint8: the scan at a random position, noise on all pixels, mid-grey background."""
    height, width = scan.shape
    field = np.zeros((FIELD, FIELD))
    top = rng.integers(0, FIELD - height + 1)
    left = rng.integers(0, FIELD - width + 1)
    field[top : top + height, left : left + width] = scan
    field += rng.normal(0.0, noise, field.shape)
    return np.clip(np.rint(64.0 + 128.0 * field), 0, 255).astype(np.uint8)
