"""Write large series of snapshots for the benchmarks, and drop large files from the page cache."""

import os
from pathlib import Path

import numpy as np

from dimred.checkpoints.series import CheckpointSeries

Shapes = dict[str, tuple[int, ...]]


def resnet_18_shapes(n_classes: int = 10) -> Shapes:
    """Return the trainable parameters of a ResNet-18 for small images: 11.2 M weights."""
    shapes: Shapes = {"conv1.weight": (64, 3, 3, 3), **_norm("bn1", 64)}
    width = 64
    for stage, wide in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            shapes[f"{name}.conv1.weight"] = (wide, width, 3, 3)
            shapes |= _norm(f"{name}.bn1", wide)
            shapes[f"{name}.conv2.weight"] = (wide, wide, 3, 3)
            shapes |= _norm(f"{name}.bn2", wide)
            if width != wide:
                shapes[f"{name}.down.weight"] = (wide, width, 1, 1)
                shapes |= _norm(f"{name}.down_bn", wide)
            width = wide
    return shapes | {"fc.weight": (n_classes, 512), "fc.bias": (n_classes,)}


def resnet_50_shapes(n_classes: int = 1001) -> Shapes:
    """Return the trainable parameters of ResNet-50: 25.6 M weights."""
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), **_norm("bn1", 64)}
    width = 64
    for stage, (wide, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            for number, shape in enumerate([(wide, width, 1, 1), (wide, wide, 3, 3), (4 * wide, wide, 1, 1)], 1):
                shapes[f"{name}.conv{number}.weight"] = shape
                shapes |= _norm(f"{name}.bn{number}", shape[0])
            if block == 0:
                shapes[f"{name}.down.weight"] = (4 * wide, width, 1, 1)
                shapes |= _norm(f"{name}.down_bn", 4 * wide)
            width = 4 * wide
    return shapes | {"fc.weight": (n_classes, 2048), "fc.bias": (n_classes,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.gamma": (width,), f"{name}.beta": (width,)}


def write_random_walk(directory: Path, shapes: Shapes, n_snapshots: int, seed: int = 0) -> CheckpointSeries:
    """Write snapshots of a random walk with steps of a hundredth of the weights' size."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    series = CheckpointSeries(directory, keep=None, prefix="net")
    for step in range(1, n_snapshots + 1):
        for weight in weights.values():
            weight += 0.01 * rng.standard_normal(weight.shape, np.float32)
        series.append(weights, step=step, epoch=step)
    return CheckpointSeries.open(directory)


def forget_cached_pages(paths: tuple[Path, ...]) -> None:
    """Drop the files' clean pages from the page cache, so that the next reading comes from the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
