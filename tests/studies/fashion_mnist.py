"""A real image task of the studies: Fashion-MNIST (Xiao et al., 2017, arXiv 1708.07747), 28 x 28 grey pixels.

    python -m tests.studies.fashion_mnist FOLDER OUT --seed 1

FOLDER holds the four idx files as they are published, ``train-images-idx3-ubyte.gz`` and so on. Debian's package
``dataset-fashion-mnist`` puts them into ``/usr/share/datasets/fashion-mnist``. Train and val are drawn from the
training files, test from the test files, another draw for each seed.
"""

import argparse
import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dimred.data.digits import write_image_tree
from dimred.errors import DataError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
SPLITS = {"train": 10_000, "val": 1_000, "test": 4_000}
ALL = {"train": 59_000, "val": 1_000, "test": 10_000}
_UNSIGNED_BYTES = 8  # code of the type in an idx file's magic number


def write_fashion_mnist(
    out: Path, seed: int = 1, folder: Path = DEBIAN, splits: Mapping[str, int] = SPLITS
) -> dict[str, int]:
    """Write ``train/<class>/*.png``, ``val/...`` and ``test/...`` under ``out``, as ``write_digits`` does.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: of the draw.
        folder: with the four idx files.
        splits: how many images of each.

    Raises:
        DataError: a file is missing or is no idx file; ``out`` holds something already.
    """
    return write_image_tree(out, _images(folder, seed, splits))


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped idx file of unsigned bytes.

    Raises:
        DataError: there is no such file, or it is no idx file of bytes.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(
            f"{str(path)!r} can't be read ({error}); install Debian's dataset-fashion-mnist, or give the folder with "
            "the four published files"
        ) from error
    if content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise DataError(f"{str(path)!r} is no idx file of bytes; give the published files")
    n_axes = content[3]
    shape = np.frombuffer(content, ">u4", n_axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def _images(folder: Path, seed: int, counts: Mapping[str, int]) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Yield (split, class, name, pixels) of every image."""
    rng = np.random.default_rng([seed, 0])
    for prefix, splits in (("train", ("train", "val")), ("t10k", ("test",))):
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
        order = iter(rng.permutation(len(labels)))
        for split in splits:
            for _ in range(counts[split]):
                number = next(order)
                yield split, str(labels[number]), f"{prefix}_{number:05d}", images[number].astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the four idx files")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(write_fashion_mnist(arguments.out, arguments.seed, arguments.folder))


if __name__ == "__main__":
    main()
