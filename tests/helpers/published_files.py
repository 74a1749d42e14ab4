"""Write files in the formats of MNIST and CIFAR, from scikit-learn's 8 x 8 digits, the built-in images."""

import gzip
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write unsigned bytes as an idx file; gzipped if its name ends in ``.gz``."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    content = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, *, n_train: int = 120, n_test: int = 40, ending: str = "") -> None:
    """Write MNIST's four files, with digits of 28 x 28 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = _digits(28)
    for prefix, first, n in (("train", 0, n_train), ("t10k", n_train, n_test)):
        write_idx(folder / f"{prefix}-images-idx3-ubyte{ending}", images[first : first + n])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{ending}", labels[first : first + n])


def write_cifar10(folder: Path) -> None:
    """Write CIFAR-10's six files and the names of its classes, with digits of three colours, 10,000 in each file."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")  # as it is published, with an empty line
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        images, labels = _coloured(10_000, number)
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels, images]).tobytes())


def write_cifar100(folder: Path) -> None:
    """Write CIFAR-100's ``test.bin``; the coarse label is the digit, the fine one is up to ten times as large."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = _coloured(10_000, 0)
    fine = (labels * 10 + np.arange(10_000) % 10).astype(np.uint8)
    (folder / "test.bin").write_bytes(np.column_stack([labels, fine, images]).tobytes())


def _digits(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all digits in the middle of ``side`` x ``side`` pixels, and their labels, uint8."""
    digits = load_digits()
    images = np.zeros((len(digits.target), side, side), np.uint8)
    large = np.kron(digits.images, np.ones((3, 3))) * (255 / 16)
    start = (side - 24) // 2
    images[:, start : start + 24, start : start + 24] = large
    return images, digits.target.astype(np.uint8)


def _coloured(n: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n digits of 32 x 32 pixels with planes of red, green and blue, (n, 3072), and their labels, uint8."""
    images, labels = _digits(32)
    numbers = (np.arange(n) + 100 * shift) % len(labels)
    grey = images[numbers].reshape(n, -1)
    return np.concatenate([grey, grey // 2, 255 - grey], axis=1), labels[numbers]
