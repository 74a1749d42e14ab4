"""An image task of the studies that needs no download: tell what was done to a small patch of a photograph.

python -c "from pathlib import Path; from tests.studies.photos import write_photos; write_photos(Path('photos'))"

The two photographs that ship with scikit-learn (a Chinese temple, a flower) are cut into blocks, and the *blocks* are
split, so that no pixel is in two splits. A patch is drawn inside its block, halved in size, changed in one of eight
ways (blurred, sharpened, ...), and covered with noise; the change is its class. What a patch shows does not tell its
class, so a network that learns one split's places by heart gains nothing on another's.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_images

from dimred.data.digits import write_image_tree

PATCH = 16
_BLOCK = 40
_NOISE = 4.0  # standard deviation, on the 0 to 255 scale
# name: blocks of each photograph (160 in all), patches of each block
SPLITS = {"train": (100, 24), "val": (20, 25), "test": (40, 50)}


def write_photos(out: Path, seed: int = 1) -> dict[str, int]:
    """Write ``train/<change>/*.png``, ``val/...`` and ``test/...``, as ``write_digits`` does."""
    return write_image_tree(out, _images(seed))


def _images(seed: int) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Yield (split, change, name, pixels) of every image."""
    photos = load_sample_images()
    counts, names = dict.fromkeys(SPLITS, 0), list(CHANGES)
    for number, (file_name, photo) in enumerate(zip(photos.filenames, photos.images, strict=True)):
        rng = np.random.default_rng([seed, number])
        for split, block, patch in _patches(photo, rng):
            change = names[int(rng.integers(len(names)))]
            noisy = CHANGES[change](patch) + rng.normal(0.0, _NOISE, patch.shape)
            yield split, change, f"{Path(file_name).stem}_block{block:03d}_{counts[split]:05d}", noisy
            counts[split] += 1


def _patches(photo: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yield (split, block, patch) for every patch of a photograph; a patch is (PATCH, PATCH, 3)."""
    rows, columns = photo.shape[0] // _BLOCK, photo.shape[1] // _BLOCK
    blocks = iter(rng.permutation(rows * columns))
    for split, (n_blocks, n_patches) in SPLITS.items():
        for _ in range(n_blocks):
            block = next(blocks)
            top, left = (block // columns) * _BLOCK, (block % columns) * _BLOCK
            for _ in range(n_patches):
                y = top + rng.integers(_BLOCK - 2 * PATCH + 1)
                x = left + rng.integers(_BLOCK - 2 * PATCH + 1)
                patch = photo[y : y + 2 * PATCH, x : x + 2 * PATCH].astype(np.float64)
                yield split, block, patch.reshape(PATCH, 2, PATCH, 2, 3).mean((1, 3))


def _blur_rows(patch: np.ndarray) -> np.ndarray:
    """Replace each pixel by the mean of itself and its left and right neighbours; the edge repeats."""
    padded = np.pad(patch, ((0, 0), (1, 1), (0, 0)), mode="edge")
    blurred: np.ndarray = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3
    return blurred


def _blur_columns(patch: np.ndarray) -> np.ndarray:
    return _blur_rows(patch.swapaxes(0, 1)).swapaxes(0, 1)


def _pixelate(patch: np.ndarray) -> np.ndarray:
    """Replace each block of 2 x 2 pixels by its mean."""
    coarse = patch.reshape(PATCH // 2, 2, PATCH // 2, 2, 3).mean((1, 3))
    return coarse.repeat(2, axis=0).repeat(2, axis=1)


# name of the class: (PATCH, PATCH, 3) -> the same shape, both on the 0 to 255 scale
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "blur": lambda patch: _blur_columns(_blur_rows(patch)),
    "blur_columns": _blur_columns,
    "blur_rows": _blur_rows,
    "flatten": lambda patch: patch.mean((0, 1)) + (patch - patch.mean((0, 1))) / 2,  # half the contrast
    "nothing": lambda patch: patch,
    "pixelate": _pixelate,
    "posterise": lambda patch: patch // 32 * 32 + 16,
    "sharpen": lambda patch: 2 * patch - CHANGES["blur"](patch),
}
