"""Read an ImageFolder tree (``<split>/<class>/<image>``) through MindSpore's own data engine.

The same code reads ImageNet and the built-in digits.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
import numpy as np
from mindspore import dtype as mstype
from mindspore.dataset import transforms, vision

from dimred.data.batches import Batches, GivenOrder
from dimred.data.image_tree import digest_of_images, read_image_tree
from dimred.errors import DataError, shown

_DAMAGED = {"stop": ds.config.ErrorSamplesMode.RETURN, "replace": ds.config.ErrorSamplesMode.REPLACE}
_PAD = 2
_IMAGENET_RESIZE = 256 / 224


class ImageFolder(Batches):
    """One split of an ImageFolder tree as batches of (images, labels).

    Args:
        folder: ``DATA/<split>``.
        image_size: height and width of the images that leave, in pixels.
        mean: of the three channels, on the 0 to 255 scale; images leave as (x - mean) / std.
        std: standard deviation of the three channels, on the same scale.
        augmentation: in training: ``random_resized_crop`` (with horizontal flip, as on ImageNet), ``pad_crop`` (pad by
            2, crop at random) or ``none``.
        resize: whether images are resized and centre-cropped outside training; off if all have ``image_size``.
        damaged: what to do with an image that can't be decoded: ``stop``, or ``replace`` it by another one of the
            batch's images. (Grey and CMYK images, and PNG files named .JPEG, are decoded to three channels.)
        options: see ``Batches``.

    Raises:
        DataError: see ``read_image_tree``.

    Shapes:
        images (batch_size, 3, image_size, image_size) float32, labels (batch_size,) int32.
    """

    def __init__(
        self,
        folder: Path,
        *,
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augmentation: str = "none",
        resize: bool = True,
        damaged: str = "stop",
        **options: Any,
    ):
        super().__init__(**options)
        self.folder, self.damaged = folder, damaged
        self.classes, self.n_images, self._suffixes = read_image_tree(folder)
        to_network = [vision.Normalize(list(mean), list(std)), vision.HWC2CHW()]
        to_size = [vision.Resize(round(image_size * _IMAGENET_RESIZE)), vision.CenterCrop(image_size)] if resize else []
        self._plain = [vision.Decode(), *to_size, *to_network]
        augmented = {
            "random_resized_crop": [
                vision.RandomCropDecodeResize(image_size), vision.RandomHorizontalFlip(0.5), *to_network
            ],
            "pad_crop": [vision.Decode(), vision.RandomCrop(image_size, [_PAD] * 4), *to_network],
            "none": self._plain,
        }  # fmt: skip
        self._augmented = augmented[augmentation]

    def digest(self) -> str:
        """Return a digest of the names and sizes of the images, in hexadecimal."""
        return digest_of_images(self.folder, self.classes)

    def _training_samples(self, order: np.ndarray, seed: int, epoch: int) -> ds.Dataset:
        own = [self.rank] if self.rank else []
        ds.config.set_seed(int(np.random.default_rng([seed, epoch, 1, *own]).integers(2**31)))
        return self._read(order, self._augmented)

    def _evaluation_samples(self, order: np.ndarray) -> ds.Dataset:
        return self._read(order, self._plain)

    def _read(self, order: np.ndarray, image_transforms: list[Any]) -> ds.Dataset:
        ds.config.set_error_samples_mode(_DAMAGED[self.damaged])
        try:
            images = ds.ImageFolderDataset(
                str(self.folder),
                num_parallel_workers=self.workers,
                sampler=GivenOrder(order),
                extensions=self._suffixes,
                class_indexing={name: index for index, name in enumerate(self.classes)},
            )
        except ValueError as error:  # MindSpore's word for a folder that has just gone
            raise DataError(f"the data can't be read: {shown(str(error), 300)}") from None
        images = images.map(image_transforms, "image", num_parallel_workers=self.workers)
        return images.map(transforms.TypeCast(mstype.int32), "label", num_parallel_workers=1)
