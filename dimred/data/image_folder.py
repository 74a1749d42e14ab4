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

from dimred.errors import ConfigError, DataError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
AUGMENTATIONS = ("random_resized_crop", "pad_crop", "none")
_PAD = 2
_IMAGENET_RESIZE = 256 / 224


def class_names(split_folder: Path) -> list[str]:
    """The classes of one split, sorted by name, after checking that each has at least one image.

    Raises:
        DataError: the folder is missing, holds no class folders, or a class has no image.
    """
    if not split_folder.is_dir():
        raise DataError(f"no such data folder: {str(split_folder)!r}; expected <DATA>/<split>/<class>/<image>")
    classes = sorted(entry.name for entry in split_folder.iterdir() if entry.is_dir())
    if not classes:
        raise DataError(f"data folder {str(split_folder)!r} has no class folders; expected <class>/<image> in it")
    for name in classes:
        if not any(entry.suffix.lower() in IMAGE_SUFFIXES for entry in (split_folder / name).iterdir()):
            raise DataError(
                f"class {name!r} in {str(split_folder)!r} has no images ({', '.join(IMAGE_SUFFIXES)}); "
                "add some, or remove the folder"
            )
    return classes


def check_data(root: Path, splits: Sequence[str], n_classes: int) -> None:
    """Check, before any expensive work, that the splits exist, agree on their classes and fit the network.

    Raises:
        DataError: names the first split that does not.
    """
    if not root.is_dir():
        raise DataError(f"DATA is {str(root)!r}, which is not a folder; name the folder that holds {', '.join(splits)}")
    expected = class_names(root / splits[0])
    for split in splits[1:]:
        found = class_names(root / split)
        if found != expected:
            differing = sorted(set(expected) ^ set(found))
            raise DataError(
                f"{splits[0]!r} and {split!r} in {str(root)!r} differ in {len(differing)} classes, "
                f"the first is {differing[0]!r}"
            )
    if len(expected) > n_classes:
        raise DataError(f"{str(root)!r} has {len(expected)} classes, but the model has n_classes {n_classes}; raise it")


class EpochOrder(ds.Sampler):
    """The order of one epoch: a permutation fixed by seed and epoch, or the order of the files without a seed.

    Args:
        n_images: length of the dataset.
        seed: of the permutation; None keeps the order of the files.
        epoch: number of the epoch, from 1.
    """

    def __init__(self, n_images: int, seed: int | None, epoch: int):
        super().__init__(n_images)
        self.n_images = n_images
        self.seed = seed
        self.epoch_number = epoch

    def __iter__(self) -> Iterator[int]:
        if self.seed is None:
            return iter(range(self.n_images))
        order = np.random.default_rng([self.seed, self.epoch_number]).permutation(self.n_images)
        return iter(order.tolist())


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

    Raises:
        DataError: see ``class_names``; ConfigError: an unknown augmentation.

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
        self.n_images = sum(
            1 for name in self.classes for entry in (folder / name).iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES
        )

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one training epoch; the remainder is dropped in training only."""
        return self.n_images // self.batch_size

    def training_epoch(self, seed: int, epoch: int, batch_size: int | None = None) -> ds.Dataset:
        """The augmented batches of one epoch, in the order of ``seed`` and ``epoch``; the remainder is dropped."""
        ds.config.set_seed(int(np.random.default_rng([seed, epoch, 1]).integers(2**31)))
        images = self._read(EpochOrder(self.n_images, seed, epoch), self._training_transforms())
        return images.batch(batch_size or self.batch_size, drop_remainder=True)

    def evaluation(self) -> ds.Dataset:
        """Every image once, in the order of the files, without augmentation."""
        return self._read(EpochOrder(self.n_images, None, 0), self._evaluation_transforms()).batch(self.batch_size)

    def _read(self, order: EpochOrder, image_transforms: list) -> ds.Dataset:
        images = ds.ImageFolderDataset(
            str(self.folder),
            num_parallel_workers=self.workers,
            sampler=order,
            extensions=list(IMAGE_SUFFIXES),
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
