"""Images a second that the ImageNet data path delivers alone. Run with -m benchmark -s."""

import time

import pytest

from dimred.data.image_folder import ImageFolder
from tests.helpers.imagenet_tree import write_imagenet_tree

pytestmark = pytest.mark.benchmark

N_CLASSES, N_IMAGES, BATCH = 4, 150, 50


@pytest.mark.parametrize("workers", [1, 2])
def test_images_per_second(workers, tmp_path):
    write_imagenet_tree(tmp_path, N_CLASSES, N_IMAGES, 1)
    images = ImageFolder(
        tmp_path / "train",
        image_size=224,
        batch_size=BATCH,
        mean=(123.675, 116.28, 103.53),
        std=(58.395, 57.12, 57.375),
        augmentation="random_resized_crop",
        workers=workers,
    )
    for epoch in (1, 2):
        started, n_images = time.perf_counter(), 0
        for batch, _ in images.training_epoch(1, epoch).create_tuple_iterator(num_epochs=1):
            n_images += len(batch)
        seconds = time.perf_counter() - started
    print(f"{workers} workers: {n_images / seconds:.0f} images/s")
