"""Convert the weights in a PyTorch file to ``.safetensors``, which can be read without unpickling."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.checkpoints.safetensors_format import safetensors_header
from dimred.checkpoints.stored_tensor import BFLOAT16, NUMBERS, reading
from dimred.errors import CheckpointError, ConfigError, DimredError, check_type
from dimred.io.atomic import open_atomic, remove_leftovers
from dimred.io.regular_file import open_regular
from dimred.merging.pickles import converted_path
from dimred.merging.record import name_faults

_OLDEST = (2, 6)  # before it, weights_only=True could be made to run code (CVE-2025-32434)
_TYPES: dict[str, np.dtype | str] = {"bool": np.dtype("?"), "bfloat16": BFLOAT16}
_TYPES |= {dtype.name: dtype for dtype in NUMBERS}


class Conversion(NamedTuple):
    """The result of a conversion.

    Attributes:
        source, out: the two files.
        keys: the keys that were asked for; empty if the only weights in the file were taken.
        n_tensors, n_numbers: number of tensors, and of their entries, that were written.
    """

    source: str
    out: str
    keys: tuple[str, ...]
    n_tensors: int
    n_numbers: int


def convert(
    file: str | os.PathLike[str], *, keys: Sequence[str] = (), out: str | os.PathLike[str] | None = None
) -> Conversion:
    """Convert the weights in a PyTorch file, which is read by ``torch.load`` with ``weights_only=True``.

    Args:
        file: the file.
        keys: which weights to take, such as ``model`` or ``state_dict.ema``. The names of several get their key as a
            prefix. Default: the only weights in the file.
        out: the new file; default beside ``file``, with the ending ``.safetensors``.

    Returns:
        What was written.

    Raises:
        ConfigError: an argument is not allowed, or ``out`` exists.
        DimredError: PyTorch is missing, or too old.
        CheckpointError: the file can't be read without running code in it, or has several sets of weights.
        FaultError: ``out`` can't be written.
    """
    check_type("file", file, (str, os.PathLike), "the path of a PyTorch file")
    source = Path(file)
    target = converted_path(source) if out is None else Path(out)
    if target.suffix != ".safetensors":
        raise ConfigError(f"out is {str(out)!r}; its name must end in .safetensors", argument="out")
    if target.exists():
        raise ConfigError(f"out is {str(target)!r}, which exists already; name another, or remove it", argument="out")
    torch = _torch()
    weights = _choose(source, dict(_weights_in(torch, _load(torch, source), ())), keys)
    types = {}
    for name, tensor in weights.items():
        kind = "no values" if tensor.is_meta else str(tensor.dtype).removeprefix("torch.")
        if kind not in _TYPES or tensor.layout != torch.strided:
            raise CheckpointError(
                f"{source}: {name!r} has the type {kind if kind not in _TYPES else tensor.layout}, which can't be "
                "averaged; save it as float32"
            )
        types[name] = (_TYPES[kind], tuple(tensor.shape))
    header, places = safetensors_header(target, types, {"format": "pt"})
    with name_faults(target):
        remove_leftovers(target.parent)
        with open_atomic(target) as new_file:
            new_file.write(header)
            for name in places:
                raw = weights[name].detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
                new_file.write(raw.numpy().data)
    n_numbers = sum(tensor.numel() for tensor in weights.values())
    return Conversion(str(source), str(target), tuple(keys), len(weights), n_numbers)


def _torch() -> Any:
    try:
        import torch  # may be missing
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DimredError("dimred convert needs PyTorch, which is not installed: python -m pip install torch") from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
        raise DimredError(f"dimred convert needs PyTorch 2.6 or later, not {torch.__version__}; install it")
    return torch


def _load(torch: Any, path: Path) -> Any:
    try:
        with reading(path), open_regular(path):
            return torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file makes PyTorch raise
        why = " ".join(str(error).split())[:300]
        code = f"import torch; torch.save(torch.load({str(path)!r}, weights_only=False)['KEY'], 'weights.pt')"
        raise CheckpointError(
            f"{path} can't be read by PyTorch with weights_only=True ({why}). If it is whole and you trust it, save "
            f"its weights alone: {shlex.join(['python', '-c', code])}"
        ) from None


def _weights_in(torch: Any, value: Any, keys: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (key, name -> tensor) for each mapping with an array of floats, however deep in other mappings."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):  # such as an optimizer's state
        return
    tensors = {name: part for name, part in value.items() if isinstance(part, torch.Tensor)}
    if any(part.is_floating_point() and part.dim() > 0 for part in tensors.values()):
        yield ".".join(keys), tensors
    for key, part in value.items():
        yield from _weights_in(torch, part, (*keys, key))


def _choose(path: Path, candidates: Mapping[str, dict[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """Return the weights under the given keys or, without keys, the only set; several keys prefix the names."""
    if not candidates:
        raise CheckpointError(f"{path} has no mapping from names to arrays of floats, so there are no weights in it")
    choices = ", ".join(
        f"{key!r} ({len(tensors)} tensors, {sum(tensor.numel() for tensor in tensors.values()):,} numbers)"
        for key, tensors in candidates.items()
    )
    if absent := [key for key in keys if key not in candidates]:
        raise CheckpointError(
            f"key is {absent[0]!r}, which has no weights in {path}; there are {choices}", argument="key"
        )
    if not keys and len(candidates) > 1:
        first = next(iter(candidates))
        raise CheckpointError(
            f"{path} has several sets of weights: {choices}; say which, such as key={first}", settings=[f"key={first}"]
        )
    if len(keys) < 2:
        return candidates[keys[0]] if keys else next(iter(candidates.values()))
    return {f"{key}.{name}": tensor for key in keys for name, tensor in candidates[key].items()}
