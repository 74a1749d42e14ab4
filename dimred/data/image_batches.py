"""Batches of images, and the operations that turn an image into the network's input, with and without augmentation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mindspore.dataset as ds
import numpy as np
from mindspore.dataset import vision

from dimred.data.batches import Batches


class ImageOperations(NamedTuple):
    """MindSpore's operations on one image."""

    training: list[Any]  # with augmentation
    plain: list[Any]


@dataclass(kw_only=True, eq=False)
class ImageBatches(Batches):
    """One split of images as batches; a subclass says how an image is read, and sets its operations."""

    image_size: int  # height and width of the network's input, in pixels
    mean: Sequence[float]  # of each channel, on the 0 to 255 scale; an image x becomes (x - mean) / std
    std: Sequence[float]  # of each channel, on the same scale
    augmentation: str = "none"  # random_resized_crop (which also flips), pad_crop or none
    resize: bool = True  # whether images are brought to image_size first; a subclass says which, and how
    pad: int = 2  # pixels of padding on each side before pad_crop crops
    flip: bool = False  # whether pad_crop also flips half of the images, left to right
    _operations: ImageOperations = field(init=False)

    def _set_operations(self, to_pixels: Sequence[Any], crop_and_resize: Any) -> None:
        """Make the operations on one image.

        Args:
            to_pixels: operations that make pixels of ``image_size``, for every augmentation but
                ``random_resized_crop``.
            crop_and_resize: an operation that takes their place for ``random_resized_crop``.
        """
        to_network = [vision.Normalize(list(self.mean), list(self.std)), vision.HWC2CHW()]
        half_flipped = vision.RandomHorizontalFlip(0.5)
        pad_crop = [*to_pixels, vision.RandomCrop(self.image_size, [self.pad] * 4)]
        augmented = {
            "random_resized_crop": [crop_and_resize, half_flipped],
            "pad_crop": [*pad_crop, half_flipped] if self.flip else pad_crop,
            "none": to_pixels,
        }
        training = [*augmented[self.augmentation], *to_network]
        self._operations = ImageOperations(training, [*to_pixels, *to_network])

    def _training_samples(self, order: np.ndarray, seed: int, epoch: int) -> ds.Dataset:
        _seed_augmentation(seed, epoch, self.rank)
        return self._read(order, self._operations.training)

    def _evaluation_samples(self, order: np.ndarray) -> ds.Dataset:
        return self._read(order, self._operations.plain)

    def _read(self, order: np.ndarray, image_operations: list[Any]) -> ds.Dataset:
        """Read the images with these numbers in this order, and apply the operations to each."""
        raise NotImplementedError


def _seed_augmentation(seed: int, epoch: int, rank: int) -> None:
    """Seed MindSpore's random operations for one epoch, differently on each rank.

    Call it just before the operations are put into a pipeline.
    """
    of_rank = [rank] if rank else []
    ds.config.set_seed(int(np.random.default_rng([seed, epoch, 1, *of_rank]).integers(2**31)))
