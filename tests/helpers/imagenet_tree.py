"""An ImageNet-shaped tree of real JPEGs, made from scikit-learn's two photographs."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images


def write_imagenet_tree(root: Path, n_classes: int, train: int, val: int, seed: int = 1) -> None:
    """Write crops of various sizes to ``root/train/n0000000c/*.JPEG`` and ``root/validation_preprocess/...``.

    In each training class the first image is grey, and the second is CMYK.

    Args:
        root: the folder to write to.
        n_classes: number of classes, c = 0, 1, ...
        train, val: images of each class in the two splits.
        seed: the same seed gives the same images.
    """
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    rng = np.random.default_rng(seed)
    for split, n_images in (("train", train), ("validation_preprocess", val)):
        for number in range(n_classes):
            folder = root / split / f"n{number:08d}"
            folder.mkdir(parents=True)
            for index in range(n_images):
                width, height = (int(size) for size in rng.integers(180, 420, 2))
                left, top = int(rng.integers(0, 640 - width)), int(rng.integers(0, 427 - min(height, 426)))
                image = photos[number % 2].crop((left, top, left + width, top + height))
                mode = {0: "L", 1: "CMYK"}.get(index, "RGB") if split == "train" else "RGB"
                image.convert(mode).save(folder / f"{folder.name}_{index}.JPEG", quality=90)
