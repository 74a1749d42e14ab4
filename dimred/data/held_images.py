"""Images held in memory, as batches; MNIST's and CIFAR's published files are read into them."""

import hashlib
from collections.abc import Sequence
from typing import Any

import mindspore.dataset as ds
import numpy as np
from mindspore.dataset import vision

from dimred.data.image_batches import ImageBatches
from dimred.data.published_files import Samples
from dimred.errors import DataError


class HeldImages(ImageBatches):
    """One split of images in memory as batches of (images, labels).

    Images whose size is not ``image_size`` are resized to it. Grey images get as many channels as ``mean`` has values:
    one, or three equal ones.

    Args:
        samples: images and labels.
        classes: names of the classes.
        options: see ``ImageBatches``. Without ``resize``, images of another size are refused.

    Raises:
        DataError: the images have a different size and ``resize`` is false; or they have neither one channel nor as
            many as ``mean`` has values.

    Shapes:
        images (batch_size, channels, image_size, image_size) float32, labels (batch_size,) int32.
    """

    def __init__(self, samples: Samples, classes: Sequence[str], **options: Any):
        super().__init__(**options)
        self._samples = samples
        self._images = _with_channels(samples.images, len(self.mean))
        self.n_images = len(samples.labels)
        self.classes = classes
        size = self.image_size
        self.input_shape = (len(self.mean), size, size)
        height, width = samples.images.shape[1:3]
        to_size = []
        if (height, width) != (size, size):
            if not self.resize:
                raise DataError(
                    f"data.resize is false, but the images have {width} x {height} pixels, and data.image_size is "
                    f"{size}; --set data.resize=true"
                )
            to_size = [vision.Resize((size, size))]
        self._set_operations(to_size, vision.RandomResizedCrop(size))

    def digest(self) -> str:
        """Return a digest of all images and labels, in hexadecimal."""
        digest = hashlib.sha256(self._samples.labels.tobytes())
        digest.update(np.ascontiguousarray(self._samples.images).data)
        return digest.hexdigest()

    def _read(self, order: np.ndarray, image_operations: list[Any]) -> ds.Dataset:
        samples = ds.GeneratorDataset(
            _ByNumber(self._images, self._samples.labels),
            ["image", "label"],
            sampler=ds.SubsetSampler(order),
            num_parallel_workers=1,
            python_multiprocessing=False,
        )
        return samples.map(image_operations, "image", num_parallel_workers=self.workers)


class _ByNumber:
    """Samples by number, as MindSpore asks for them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return np.ascontiguousarray(self._images[number]), self._labels[number]


def _with_channels(images: np.ndarray, n_channels: int) -> np.ndarray:
    """Return images (n, height, width, n_channels); grey ones are repeated without a copy.

    Raises:
        DataError: the images have several channels, but not ``n_channels``.
    """
    if images.shape[3] not in (1, n_channels):
        raise DataError(
            f"data.mean and data.std have {n_channels} value, but the images have {images.shape[3]} channels; give one "
            "value for each channel"
        )
    return np.broadcast_to(images, (*images.shape[:3], n_channels))
