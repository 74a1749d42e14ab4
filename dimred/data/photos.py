"""A second real image task without a download: which photograph a small patch comes from, and which way up it is.

The two photographs that ship with scikit-learn (a Chinese temple, a flower) are cut into blocks, and the *blocks* are
split, so that no pixel is in two splits. A patch is drawn inside its block, halved in size, turned by 0, 90, 180 or 270
degrees, and covered with noise; its class is photograph and turn, 2 x 4. (Telling the turn: Gidaris, Singh, Komodakis,
Unsupervised Representation Learning by Predicting Image Rotations, 2018.)
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_images

from dimred.data.image_tree import check_seed, new_image_tree, save_image

PATCH = 16
_BLOCK = 40
_TURNS = 4
# name: blocks of each photograph (160 in all), patches of each block
SPLITS = {"train": (100, 24), "val": (20, 25), "test": (40, 50)}


def write_photos(out: Path, seed: int = 1, noise: float = 12.0) -> dict[str, int]:
    """Write ``train/<photo>_<degrees>/*.png``, ``val/...`` and ``test/...``; the same seed gives the same bytes.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: of the split, the positions and the noise; 0 or more.
        noise: standard deviation of the pixel noise, on the 0 to 255 scale.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already or can't be written, or the seed is negative. Nothing is left behind.
    """
    check_seed(seed)
    photos = load_sample_images()
    counts = dict.fromkeys(SPLITS, 0)
    with new_image_tree(out) as folder:
        for number, (name, photo) in enumerate(zip(photos.filenames, photos.images, strict=True)):
            rng = np.random.default_rng([seed, number])
            for split, block, patch in _patches(photo, rng):
                turn = int(rng.integers(_TURNS))
                noisy = np.rot90(patch, turn) + rng.normal(0.0, noise, patch.shape)
                class_name = f"{Path(name).stem}_{90 * turn:03d}"
                save_image(noisy, folder / split / class_name / f"block{block:03d}_{counts[split]:05d}.png")
                counts[split] += 1
    return counts


def _patches(photo: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, int, np.ndarray]]:
    """(split, block, patch) for every patch of a photograph; a patch is (PATCH, PATCH, 3)."""
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
