"""Checkpoints as other frameworks leave them, written and read back by the safetensors library."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import deserialize, safe_open
from safetensors.numpy import save

from tests.oracles import merge as oracle

INDEX = "model.safetensors.index.json"
BITS = np.uint16  # an array of these is written as bfloat16
CODES = {"BF16": np.uint16, "U16": np.uint16, "F16": np.float16, "F32": np.float32, "F64": np.float64, "I64": np.int64}


def write_file(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> Path:
    """Write a ``.safetensors`` file, and return its path.

    Arrays of the type ``BITS`` become bfloat16: the library can't write that from NumPy, so the header is changed.

    Args:
        path: the file; folders above it are made.
        tensors: the arrays by name.
        metadata: metadata of the file; None for those that PyTorch writes.
    """
    content = save(dict(tensors), metadata={"format": "pt"} if metadata is None else metadata)
    size = int.from_bytes(content[:8], "little")
    head = content[8 : 8 + size].rstrip().replace(b'"U16"', b'"BF16"')
    head += b" " * (-len(head) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(head).to_bytes(8, "little") + head + content[8 + size :])
    return path


def write_shards(folder: Path, shards: Sequence[Mapping[str, np.ndarray]]) -> Path:
    """Write arrays by name as numbered shards with their index, as transformers does; return the folder."""
    weight_map = {}
    for number, tensors in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(folder / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    total = sum(array.nbytes for tensors in shards for array in tensors.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2))
    return folder


def read_file(path: Path) -> dict[str, np.ndarray]:
    """Read every tensor of a ``.safetensors`` file with the library, by name; bfloat16 as its bits."""
    return {
        name: np.frombuffer(bytes(entry["data"]), CODES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in deserialize(path.read_bytes())
    }


def metadata_of(path: Path) -> dict[str, str] | None:
    with safe_open(path, "numpy") as file:
        return file.metadata()


def draw(shape: tuple[int, ...], dtype: type, seed: int) -> np.ndarray:
    """Draw normal numbers in an array of a type; ``BITS`` stands for bfloat16, whose bits are returned."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(BITS) if dtype is BITS else values.astype(dtype)


def as_float(array: np.ndarray) -> np.ndarray:
    """Return the values of an array, whose bfloat16 is given as bits."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == BITS else array


def in_type(values: np.ndarray, dtype: type) -> np.ndarray:
    """Round float64 values to a type; for ``BITS``, bfloat16, by the oracle."""
    if dtype is BITS:
        return oracle.to_bfloat16(values)
    return values.astype(dtype)


def network(seed: int, dtype: type = np.float32) -> dict[str, np.ndarray]:
    """Draw the arrays of a network with BatchNorm, named as PyTorch names them, large enough for several blocks."""
    return {
        "conv.weight": draw((7, 3, 3), dtype, seed),
        "bn.running_mean": draw((7,), dtype, seed + 1000),
        "bn.running_var": np.abs(draw((7,), np.float32, seed + 2000)).astype(np.float32),
        "bn.num_batches_tracked": np.array(100 + seed),
        "fc.weight": draw((210, 1000), dtype, seed + 3000),
    }


def write_run(folder: Path, n: int, dtype: type = np.float32, *, sharded: bool = False) -> list[dict[str, np.ndarray]]:
    """Write ``checkpoint-1000`` and so on, as a trainer leaves them, and return their tensors, oldest first.

    Args:
        folder: gets the ``n`` checkpoints.
        n: number of checkpoints.
        dtype: type of the weights.
        sharded: whether each checkpoint is two shards with an index.
    """
    written = [network(seed, dtype) for seed in range(n)]
    for number, tensors in enumerate(written, start=1):
        one = folder / f"checkpoint-{number}000"
        if sharded:
            names = list(tensors)
            write_shards(one, [{name: tensors[name] for name in part} for part in (names[:3], names[3:])])
        else:
            write_file(one / "model.safetensors", tensors)
        (one / "config.json").write_text('{"model_type": "tiny"}')
        (one / "trainer_state.json").write_text("{}")
        (one / "optimizer.pt").write_bytes(b"\x80\x02")
    return written
