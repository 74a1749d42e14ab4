"""Read an ImageFolder tree (``<split>/<class>/<image>``) through MindSpore's own data engine.

The same code reads ImageNet and the built-in digits. The order of the images depends only on the seed and the epoch,
so an epoch can be replayed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
from mindspore import dtype as mstype
from mindspore.dataset import transforms, vision

from dimred.data.class_folders import ClassFolders, class_names
from dimred.data.reading import Readable
from dimred.errors import ConfigError

DAMAGED = {"stop": ds.config.ErrorSamplesMode.RETURN, "replace": ds.config.ErrorSamplesMode.REPLACE}
AUGMENTATIONS = ("random_resized_crop", "pad_crop", "none")
_PAD = 2
_IMAGENET_RESIZE = 256 / 224


class GivenOrder(ds.Sampler):
    """The images with these numbers, in this order."""

    def __init__(self, order: np.ndarray):
        super().__init__(len(order))
        self._order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.tolist())


def epoch_order(n_images: int, seed: int, epoch: int, batch_size: int, rank: int, group_size: int) -> np.ndarray:
    """This rank's images of one epoch, in order; the remainder is dropped.

    Each global batch is R ``batch_size`` consecutive images of a permutation of all, which depends on seed and epoch
    only; rank r takes the r-th part of it. So R ranks see in each step what one rank with the R-fold batch sees.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n_images)
    n_batches = n_images // (batch_size * group_size)
    batches = order[: n_batches * batch_size * group_size].reshape(n_batches, group_size, batch_size)
    return batches[:, rank].reshape(-1)


class ImageFolder:
    """One split of an ImageFolder tree as batches of (images, labels).

    Args:
        folder: ``DATA/<split>``.
        image_size: height and width of what the network sees, pixels.
        batch_size: images in a batch.
        mean, std: of the three channels, on the 0 to 255 scale; images leave as (x - mean) / std.
        augmentation: in training: ``random_resized_crop`` (with horizontal flip, as on ImageNet), ``pad_crop`` (pad by
            2, crop at random) or ``none``.
        resize: whether images are resized and centre-cropped outside training (off for images of ``image_size``).
        workers: parallel decoding workers.
        damaged: what to do with an image that can't be decoded: ``stop``, or ``replace`` it by another one of the
            batch's images. (Grey and CMYK images, and PNG files named .JPEG, are decoded to three channels.)
        rank, group_size: of a data-parallel job, whose ranks share out the images of every batch.
        accumulation: micro-batches of ``batch_size`` in each training batch; the last of an epoch may have fewer.
        sink: of training batches without accumulation, see ``Readable``.

    Raises:
        DataError: see ``class_names``, and from an epoch, ``ClassFolders``; ConfigError: an unknown augmentation.

    Shapes:
        images (batch_size, 3, image_size, image_size) float32, labels (batch_size,) int32.
    """

    def __init__(
        self,
        folder: Path,
        *,
        image_size: int,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augmentation: str = "none",
        resize: bool = True,
        workers: int = 2,
        damaged: str = "stop",
        rank: int = 0,
        group_size: int = 1,
        accumulation: int = 1,
        sink: bool = False,
    ):
        if augmentation not in AUGMENTATIONS:
            raise ConfigError(f"augmentation is {augmentation!r}; allowed: {', '.join(AUGMENTATIONS)}")
        self.folder = folder
        self.classes = class_names(folder)
        self.image_size = image_size
        self.batch_size = batch_size
        self.mean = list(mean)
        self.std = list(std)
        self.augmentation = augmentation
        self.resize = resize
        self.workers = workers
        self.damaged = damaged
        self.rank = rank
        self.group_size = group_size
        self.accumulation = accumulation
        self.sink = sink
        self._images = ClassFolders(folder, self.classes)
        self.n_images = self._images.n_images

    @property
    def steps_per_epoch(self) -> int:
        """Steps in one training epoch: full micro-batches of all ranks, in groups; what fills none is dropped."""
        return -(-(self.n_images // (self.batch_size * self.group_size)) // self.accumulation)

    def training_epoch(self, seed: int, epoch: int, batch_size: int | None = None) -> Readable:
        """This rank's augmented batches of one epoch, in the order of ``seed`` and ``epoch``, without a remainder."""
        own = [self.rank] if self.rank else []
        ds.config.set_seed(int(np.random.default_rng([seed, epoch, 1, *own]).integers(2**31)))
        size = batch_size or self.batch_size
        order = epoch_order(self.n_images, seed, epoch, size, self.rank, self.group_size)
        images = self._read(order, self._training_transforms())
        if batch_size is not None or self.accumulation == 1:
            return Readable(images.batch(size, drop_remainder=True), self.sink)
        return Readable(images.batch(size * self.accumulation))  # the order holds whole micro-batches only

    def evaluation(self) -> Readable:
        """Every image once, over all ranks, in the order of the files, without augmentation."""
        order = np.arange(self.rank, self.n_images, self.group_size)
        return Readable(self._read(order, self._evaluation_transforms()).batch(self.batch_size))

    def _read(self, order: np.ndarray, image_transforms: list) -> ds.Dataset:
        self._images.check_unchanged()
        ds.config.set_error_samples_mode(DAMAGED[self.damaged])
        images = ds.ImageFolderDataset(
            str(self.folder),
            num_parallel_workers=self.workers,
            sampler=GivenOrder(order),
            extensions=self._images.suffixes,
            class_indexing={name: index for index, name in enumerate(self.classes)},
        )
        images = images.map(image_transforms, "image", num_parallel_workers=self.workers)
        return images.map(transforms.TypeCast(mstype.int32), "label", num_parallel_workers=1)

    def _training_transforms(self) -> list:
        if self.augmentation == "random_resized_crop":
            first = [vision.RandomCropDecodeResize(self.image_size), vision.RandomHorizontalFlip(0.5)]
        elif self.augmentation == "pad_crop":
            first = [vision.Decode(), vision.RandomCrop(self.image_size, [_PAD] * 4)]
        else:
            return self._evaluation_transforms()
        return first + self._to_network()

    def _evaluation_transforms(self) -> list:
        first = [vision.Decode()]
        if self.resize:
            first += [
                vision.Resize(round(self.image_size * _IMAGENET_RESIZE)),
                vision.CenterCrop(self.image_size),
            ]
        return first + self._to_network()

    def _to_network(self) -> list:
        return [vision.Normalize(self.mean, self.std), vision.HWC2CHW()]
