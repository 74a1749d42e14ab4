"""A task whose test loss is its training loss: bytes of the source code of Python's standard library, each read once.

DATA is the library's folder, which every machine has, or another one with Python files. The YAML files beside this one
name what is here, so from the repository's folder:

    LIBRARY=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
    dimred train stage-1 "$LIBRARY" --config tests/studies/source_code.yaml --device-target CPU --devices 1

A sample is a window of 128 bytes and, as labels, the bytes that follow each of them. An epoch is 672 windows, 86 kB, or
12 s on one core: 45 epochs with all that belongs to them take ten minutes. Of some 9 MB in ``train`` epochs 1, 2, ...
read one part after another in a fixed random order of all windows, and those of a search the parts from the other end,
so that 45 epochs and a stage 2 see no byte twice. Files belong to a split by a hash of their names.
"""

import hashlib
from functools import cache
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn
from mindspore.common.initializer import Normal, initializer

from dimred.data.batches import STAGE_2_EPOCHS_FROM
from dimred.evaluation.scores import Score, cross_entropy

CONTEXT = 128  # bytes
EPOCH = 672  # windows
MEASURED = 256  # windows of val and of test
_LAYERS, _WIDTH, HEADS = 3, 96, 4
_NOT_CODE = {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages", "dist-packages"}
_IN_256 = {"val": range(12), "test": range(12, 24)}  # of the first byte of a name's hash


class Windows:
    """Windows of a text with these numbers: (bytes, the bytes that follow them), int32 (CONTEXT,) each."""

    def __init__(self, text: np.ndarray, numbers: np.ndarray):
        self._text, self._numbers = text, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        first = int(self._numbers[number]) * CONTEXT
        window = self._text[first : first + CONTEXT + 1].astype(np.int32)
        return window[:-1], window[1:]


def dataset(folder: Path, split: str, seed: int | None, epoch: int | None) -> Windows:
    """Make a split's windows as ``dimred.data.own_dataset`` asks; without an epoch, the first of the fixed order."""
    return windows_of(text_of(folder, split), split, epoch)


def windows_of(text: np.ndarray, split: str, epoch: int | None) -> Windows:
    """Return the windows of a text, uint8, that an epoch reads."""
    order = np.random.default_rng(0).permutation((len(text) - 1) // CONTEXT)
    if split != "train":
        return Windows(text, order[:MEASURED])
    n_parts = max(len(order) // EPOCH, 1)
    if epoch is None:
        part = 0
    elif epoch > STAGE_2_EPOCHS_FROM:
        part = (STAGE_2_EPOCHS_FROM - epoch) % n_parts
    else:
        part = (epoch - 1) % n_parts
    return Windows(text, order[part * EPOCH : (part + 1) * EPOCH])


@cache
def text_of(folder: Path, split: str) -> np.ndarray:
    """Return the split's files as uint8, one after another, with a 0 behind each."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if not _NOT_CODE & set(name.parts) and _split_of(name.as_posix()) == split:
            found.append(path.read_bytes() + b"\0")
    return np.frombuffer(b"".join(found), np.uint8)


def _split_of(name: str) -> str:
    place = hashlib.sha256(name.encode()).digest()[0]
    return next((split for split, places in _IN_256.items() if place in places), "train")


def loss_per_byte() -> Score:
    """Return the cross entropy of each byte in nats, without smoothing; the perplexity is its exponential."""
    return cross_entropy


class _Attention(nn.Cell):
    """Causal self-attention: (n, T, width) -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = _dense(_WIDTH, 3 * _WIDTH)
        self.outputs = _dense(_WIDTH, _WIDTH)
        self.mask = Tensor(np.triu(np.full((CONTEXT, CONTEXT), -1e9, np.float32), 1))
        self.scale = (_WIDTH // HEADS) ** -0.5

    def construct(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        heads = self.inputs(x).reshape(n, length, 3 * HEADS, width // HEADS).swapaxes(1, 2)
        query, key, value = mint.split(heads, HEADS, 1)
        weights = mint.matmul(query * self.scale, key.swapaxes(2, 3)) + self.mask[:length, :length]
        mixed = mint.matmul(mint.softmax(weights, -1), value)
        return self.outputs(mixed.swapaxes(1, 2).reshape(n, length, width))


class _Block(nn.Cell):
    """Attention and two dense layers, each behind a normalisation and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm((_WIDTH,)), _Attention()
        self.norm_2 = nn.LayerNorm((_WIDTH,))
        self.dense = nn.SequentialCell(_dense(_WIDTH, 4 * _WIDTH), nn.ReLU(), _dense(4 * _WIDTH, _WIDTH))

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.dense(self.norm_2(x))


class _Transformer(nn.Cell):
    """Bytes (n, T) -> logits of the byte that follows each of them, (n, 256, T)."""

    def __init__(self, n_classes: int):
        super().__init__()
        self.embedding = nn.Embedding(n_classes, _WIDTH, embedding_table=Normal(0.1))
        self.places = Parameter(initializer(Normal(0.1), (CONTEXT, _WIDTH), ms.float32), name="places")
        self.blocks = nn.SequentialCell(*(_Block() for _ in range(_LAYERS)))
        self.norm, self.logits = nn.LayerNorm((_WIDTH,)), _dense(_WIDTH, n_classes)

    def construct(self, text: Tensor) -> Tensor:
        x = self.embedding(text) + self.places[: text.shape[1]]
        return self.logits(self.norm(self.blocks(x))).swapaxes(1, 2)


def _dense(n_in: int, n_out: int) -> nn.Dense:
    return nn.Dense(n_in, n_out, weight_init=Normal(n_in**-0.5 / 2), bias_init="zeros")


def network(n_classes: int) -> nn.Cell:
    """Build a causal transformer of 0.4 M weights, without dropout or BatchNorm."""
    return _Transformer(n_classes)
