"""Convert PyTorch's pickles of weights to ``.safetensors`` files, which can be read without unpickling."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.checkpoints.checkpoint_io import check_is_no_pointer, open_checkpoint
from dimred.checkpoints.folder import INDEX
from dimred.checkpoints.pickles import check_is_not_distributed, converted_path, is_of_torch, pickles_of_weights
from dimred.checkpoints.safetensors_format import safetensors_header
from dimred.checkpoints.stored_tensor import BFLOAT16, NUMBERS, reading
from dimred.errors import CheckpointError, ConfigError, FaultError
from dimred.io.atomic import atomic_write, describe_os_error, make_folder, open_atomic
from dimred.merging.inputs import Sources, find_paths, list_sources
from dimred.merging.torch_files import Weights, choose_weights, describe, read_weights, torch_module

_log = logging.getLogger(__name__)
_PICKLED_INDEX = ".bin.index.json"
_TYPES: dict[str, np.dtype | str] = {"bool": np.dtype("?"), "bfloat16": BFLOAT16}
_TYPES |= {dtype.name: dtype for dtype in NUMBERS}


class Conversion(NamedTuple):
    """What one file was converted to.

    Attributes:
        source, out: the two files.
        key: where the weights were in the file; empty for the file itself.
        kind: ``raw`` or ``averaged``.
        n_tensors, n_numbers: how much was written.
        others: other weights in the file, which were not taken.
        ties: names that share their values in the file; each has a copy of its own in ``out``.
    """

    source: str
    out: str
    key: str
    kind: str
    n_tensors: int
    n_numbers: int
    others: tuple[str, ...]
    ties: tuple[tuple[str, ...], ...]


def convert(
    sources: Sources, *, key: str | None = None, out: str | Path | None = None, force: bool = False
) -> list[Conversion]:
    """Convert PyTorch's pickles of weights to ``.safetensors``.

    Args:
        sources: files, globs or folders; in a folder, all pickles of weights, in sub-folders too. What is converted
            already is passed over there.
        key: which weights to take from a file, keys joined by dots. Default: its only weights, or of several the only
            ones that are not an average of the others.
        out: the new file for one file; otherwise a folder; default beside each file.
        force: whether to replace existing files.

    Returns:
        One entry for each file that was written.

    Raises:
        ConfigError: there is nothing to convert, or a file exists.
        DimredError: PyTorch is missing.
        CheckpointError: a file can't be read, is a pointer of Git LFS, has no values, or has several weights to choose
            from; or the folder is a distributed checkpoint.
        FaultError: a file can't be written.
    """
    torch = torch_module()
    texts = list_sources(sources)
    jobs: dict[Path, Path] = {}
    for source in (path for text in texts for path in find_paths(text)):
        jobs |= _jobs(source, None if out is None else Path(out), force=force)
    clash = next((target for target, count in Counter(jobs.values()).items() if count > 1), None)
    if clash is not None:
        both = " and ".join(str(path) for path, target in jobs.items() if target == clash)
        raise ConfigError(f"{both} would both become {clash}; convert one of them, or give each another out")
    for source in jobs:
        with open_checkpoint(source) as file, reading(source):
            check_is_no_pointer(file, source)
    indices = _indices(jobs)
    conversions: list[Conversion] = []
    of_folders = any(Path(text).is_dir() for text in texts)
    for source, target in jobs.items():
        weights = read_weights(torch, source)
        if not weights and of_folders:
            _log.info(f"{source} has no weights, and is passed over")
            continue
        conversions.append(_write(torch, source, target, weights, key))
    _write_indices(indices)
    return conversions


def _jobs(source: Path, out: Path | None, *, force: bool) -> dict[Path, Path]:
    """Return the files to convert and what each becomes."""
    check_is_not_distributed(source)
    if not source.is_dir():
        target = converted_path(source) if out is None else out / converted_path(source).name if out.is_dir() else out
        if target.suffix != ".safetensors":
            raise ConfigError(f"out is {str(out)!r}; its name must end in .safetensors, or name an existing folder")
        if target.exists() and not force:
            raise ConfigError(f"{source} would become {target}, which exists already; force=True replaces it")
        return {source: target}
    found = pickles_of_weights(path for path in source.rglob("*") if not _is_hidden(path.relative_to(source)))
    pickles = [path for path in found if is_of_torch(path)]
    for path in found:
        if path not in pickles:
            _log.info(f"{path} was not written by PyTorch, and is passed over")
    if not pickles:
        raise ConfigError(f"FILES is {str(source)!r}, a folder without a pickle of weights; name another")
    targets = {path: converted_path(path if out is None else out / path.relative_to(source)) for path in pickles}
    jobs = {path: target for path, target in targets.items() if force or not target.exists()}
    if len(jobs) < len(pickles):
        _log.info(f"{len(pickles) - len(jobs)} of {len(pickles)} files in {source} were converted before")
        for path in pickles:
            if path not in jobs and path.stat().st_mtime_ns > targets[path].stat().st_mtime_ns:
                _log.warning(
                    f"{path} is newer than {targets[path]}, which stays as it is; convert with force to replace it"
                )
    return jobs


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _write(torch: Any, source: Path, target: Path, candidates: list[Weights], key: str | None) -> Conversion:
    weights = choose_weights(source, candidates, key)
    tensors = weights.tensors
    # ZeRO-3 leaves small parameters and buffers whole.
    empty = [name for name, tensor in tensors.items() if tensor.is_meta or tensor.numel() == 0]
    if len(empty) == len(tensors) or any(tensors[name].is_meta or name.endswith("weight") for name in empty):
        raise CheckpointError(
            f"{source} has no values for {len(empty)} of its {len(tensors)} names, such as {empty[0]!r}, as "
            "DeepSpeed's ZeRO-3 leaves them; gather them first with the zero_to_fp32.py beside it"
        )
    types = {}
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in _TYPES or tensor.layout != torch.strided:
            what = kind if kind not in _TYPES else str(tensor.layout)
            raise CheckpointError(
                f"{source}: {name!r} has the type {what}, which can't be averaged; save it as float32"
            )
        types[name] = (_TYPES[kind], tuple(tensor.shape))
    header, places = safetensors_header(target, types, {"format": "pt"})
    try:
        make_folder(target.parent)
        with open_atomic(target) as file:
            file.write(header)
            for name in places:
                raw = tensors[name].detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
                file.write(raw.numpy().data)
    except OSError as error:
        raise FaultError(f"{target} can't be written ({describe_os_error(error)})") from error
    names_by_memory: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            where = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), *tensor.shape)
            names_by_memory.setdefault(where, []).append(name)
    return Conversion(
        str(source), str(target), weights.key, "averaged" if weights.is_average else "raw", len(tensors),
        sum(tensor.numel() for tensor in tensors.values()),
        tuple(f"{one.key} ({describe(one)})" for one in candidates if one.key != weights.key),
        tuple(tuple(names) for names in names_by_memory.values() if len(names) > 1),
    )  # fmt: skip


def _indices(jobs: dict[Path, Path]) -> dict[Path, dict[str, Any]]:
    """Make the index of the new shards in each folder, from the index of the pickles: its path -> its content."""
    folders = {source.parent: target.parent for source, target in jobs.items()}
    indices: dict[Path, dict[str, Any]] = {}
    for folder, target_folder in folders.items():
        for index in folder.glob(f"*{_PICKLED_INDEX}"):
            with open_checkpoint(index) as file, reading(index):
                check_is_no_pointer(file, index)
                text = file.read()
            try:
                content = json.loads(text)
                names = {name: converted_path(folder / shard).name for name, shard in content["weight_map"].items()}
            except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError) as error:
                raise CheckpointError(f"{index} is not an index of shards ({type(error).__name__}: {error})") from None
            stem = converted_path(folder / (index.name.removesuffix(_PICKLED_INDEX) + ".bin")).stem
            indices[target_folder / f"{stem}{INDEX}"] = {**content, "weight_map": names}
    return indices


def _write_indices(indices: dict[Path, dict[str, Any]]) -> None:
    """Write the indices whose shards are all there; last, so that a folder with an index is whole."""
    for path, content in indices.items():
        if all((path.parent / shard).exists() for shard in content["weight_map"].values()):
            atomic_write(path, json.dumps(content, indent=2) + "\n")
