"""Find the checkpoints in a folder, and open one: a file, or a folder: one file, shards, sub-folders."""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dimred.checkpoints.checkpoint_io import SUFFIXES, Checkpoint, Stamps, open_file, read_index, stamps_of
from dimred.checkpoints.pickles import (
    check_is_not_distributed,
    converted_path,
    is_pickle,
    is_state,
    pickles_of_weights,
    refusal,
    unconverted,
)
from dimred.checkpoints.stored_tensor import StoredTensor, reading
from dimred.errors import CheckpointError, ConfigError, shown
from dimred.io.run_names import MERGE_FOLDER, has_record, snapshots_below

_log = logging.getLogger(__name__)

INDEX = ".safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
_LISTS = ("modules.json", "model_index.json")  # name the sub-folders of Sentence Transformers' and diffusers' networks
_COPY = re.compile(r"(?:^|[\W_])(?:best|last|latest|final|newest)(?=[\W_\d]|$)", re.IGNORECASE)
# A word in a name that tells when, and not which part.
_PLACE = re.compile(r"(?<![a-z])(?:checkpoint|ckpt|epoch|step|iter(?:ation)?)s?(?![a-z])", re.IGNORECASE)
_SHARD = re.compile(r"-\d+-of-\d+$")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def checkpoints_in(folder: Path, argument: str) -> list[Path]:
    """List the checkpoints in a folder, sorted by name: numbered folders or, if there are none, files.

    Left out are results of merges, optimizer states, further names of one file or folder, and a single file or folder
    named as a copy, such as ``best``.

    Args:
        folder: the folder.
        argument: what the user calls it, for errors.

    Raises:
        ConfigError: there are none, or it is a run's folder, whose snapshots are further below; or numbered folders
            stand beside a series of files.
        CheckpointError: some or all of them are pickles that were not converted.
    """
    if where := snapshots_below(folder):
        raise ConfigError(f"{argument} is {str(folder)!r}, the folder of a run{where}")
    visible = distinct(sorted(path for path in folder.iterdir() if not path.name.startswith(".")))
    entries = [path for path in visible if path.suffix != MERGE_FOLDER and not has_record(path)]
    _pass_over([path for path in entries if path.is_symlink() and not path.exists()], "is a link to what is gone")
    folders = [path for path in entries if path.is_dir() and re.search(r"\d", path.name)]
    if complete := [path for path in folders if _parts(path)]:
        others = [path for path in folders if path not in complete and _pattern(path) in {*map(_pattern, complete)}]
        if pickles := [pickle for other in others for pickle in unconverted(pickles_of_weights(other.rglob("*")))]:
            raise refusal(pickles, folder)
        _pass_over(others, "has no weights")
        _check_has_no_series(folder, complete, _files_of_weights(entries), argument)
        return _without_copies(complete)
    pickles = unconverted(pickles_of_weights(entries))
    files = _files_of_weights(entries)
    if files := [path for path in files if not is_state(path)] or files:
        patterns = {*map(_pattern, files)}
        if of_series := [path for path in pickles if _pattern(path) in patterns]:
            raise refusal(of_series, folder)
        _pass_over(pickles, "is a pickle")
        return _without_copies(files)
    if pickles := unconverted(pickles_of_weights(folder.rglob("*"))):
        raise refusal(pickles, folder)
    check_is_not_distributed(folder)
    raise ConfigError(f"{argument} is {str(folder)!r}, a folder without a .safetensors or .ckpt file; name another")


def _files_of_weights(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.suffix in SUFFIXES and path.is_file() and not is_pickle(path)]


def _check_has_no_series(folder: Path, folders: Sequence[Path], files: Sequence[Path], argument: str) -> None:
    """Check that no series of files stands beside the folders; ConfigError if one does, as either may be meant."""
    if series := _of_series([path for path in files if not _SHARD.search(path.stem)]):
        globs = [folder / _NUMBER.sub("*", path.name) for path in (folders[0], series[0])]
        raise ConfigError(
            f"{argument} is {str(folder)!r}, which has checkpoints in folders, such as {folders[0].name}, and in "
            f"files, such as {series[0].name}; say which you mean: '{globs[0]}' or '{globs[1]}'"
        )


def distinct(paths: Iterable[Path]) -> list[Path]:
    """Leave out further names of one file or folder, links of both kinds, and say so: it would count twice."""
    names: dict[object, Path] = {}
    paths = list(dict.fromkeys(paths))
    # A name with a number of its own is kept, rather than "last", and a file rather than a link to it.
    for path in sorted(paths, key=lambda path: (_COPY.search(path.name) is not None, path.is_symlink())):
        name = names.setdefault(_identity(path), path)
        if name != path:
            _log.info(f"{path} is another name of {name}, and is passed over")
    return [path for path in paths if path in names.values()]


def _identity(path: Path) -> object:
    """Return what all names of one file or folder have in common."""
    try:
        status = path.stat()
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _pattern(path: Path) -> str:
    """Return the name without its ending, with # in place of each number, so that a series has one pattern."""
    return _NUMBER.sub("#", path.name if path.is_dir() else converted_path(path).stem)


def _of_series(paths: Iterable[Path]) -> list[Path]:
    """List those whose names differ from another one's in numbers alone, but for names as of copies."""
    by_pattern: dict[str, list[Path]] = {}
    for path in paths:
        if not _COPY.search(path.name):
            by_pattern.setdefault(_pattern(path), []).append(path)
    return [path for alike in by_pattern.values() if len(alike) > 1 for path in alike]


def _without_copies(paths: Sequence[Path]) -> list[Path]:
    """Leave out what a trainer keeps twice, such as ``resnet_best.ckpt`` or ``last.safetensors``, and say so."""
    counts = Counter(map(_pattern, paths))
    has_series = bool(_of_series(paths))
    originals = [
        path for path in paths if not _COPY.search(path.name) or (counts[_pattern(path)] > 1 and not has_series)
    ]
    _pass_over([path for path in paths if originals and path not in originals], "is named as a copy of another")
    return originals or list(paths)


def _pass_over(paths: Sequence[Path], why: str) -> None:
    for path in paths:
        _log.info(f"{path} {why}, and is passed over")


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and not is_pickle(path))
    return index_files(folder) or [path for path in files if not is_state(path)] or files


def index_files(folder: Path) -> list[Path]:
    """List the indices of shards of ``.safetensors`` in a folder, sorted."""
    return sorted(folder.glob(f"*{INDEX}"))


def _parts(folder: Path) -> list[Path]:
    """List the folders that hold the weights of one checkpoint: itself, or sub-folders, as of a pipeline.

    Raises:
        CheckpointError: the list of its sub-folders can't be read, or a sub-folder has a pickle that was not converted.
    """
    parts_by_list = _listed_parts(folder)
    if parts_by_list is None:
        if _weight_files(folder):
            return [folder]
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        below = [path for path in below if not _PLACE.search(path.name)]
        parts = [path for path in below if _weight_files(path)]
        if not parts or len({*map(_pattern, parts)}) < len(parts):
            return []  # or a series
        if pickles := unconverted(pickles_of_weights(path for part in below for path in part.iterdir())):
            raise refusal(pickles, folder)
        return parts
    below = [path for part in parts_by_list if part != folder for path in part.rglob("*")]
    parts = [path for path in dict.fromkeys([*parts_by_list, *sorted(below)]) if path.is_dir()]
    if pickles := unconverted(pickles_of_weights(path for part in parts for path in part.iterdir())):
        raise refusal(pickles, folder)
    return [path for path in parts if _weight_files(path)]


def _listed_parts(folder: Path) -> list[Path] | None:
    """Return the sub-folders that a network's own list names, the folder itself among them; None if none are listed."""
    path = next((folder / name for name in _LISTS if (folder / name).is_file()), None)
    if path is None:
        return None
    with reading(path):
        content = path.read_bytes()
    try:
        data = json.loads(content)
        if isinstance(data, dict):
            names = [name for name, kind in data.items() if isinstance(kind, list)]
        else:
            names = [entry["path"] for entry in data]
        parts = [folder / name for name in names]
        if any(".." in part.parts or not part.is_relative_to(folder) for part in parts):
            raise ValueError("it names no folder below it")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} does not list a network's folders ({type(error).__name__}: {error})") from None
    return parts or None


def read_one(path: Path) -> Checkpoint:
    """Open a checkpoint: a file, or a folder with weights in one file, shards or sub-folders. Its step is left at 0.

    The tensors of a sub-folder are named FOLDER/NAME.

    Raises:
        CheckpointError: a file is damaged or a pickle, or ``path`` is not a single checkpoint.
    """
    if not path.is_dir():
        return _read_file(path)
    parts = _parts(path)
    if parts in ([], [path]):
        return _read_folder(path)
    if adapter := next((part for part in parts if part != path and (part / ADAPTER_CONFIG).exists()), None):
        each = path.parent / "*" / adapter.relative_to(path)
        raise CheckpointError(f"{path} holds the adapter {adapter.name}; to average one adapter of each, give '{each}'")
    folders = [_read_folder(part) for part in parts]
    tensors = {
        part_prefix(path, tensor.file) + name: tensor for part in folders for name, tensor in part.tensors.items()
    }
    files = tuple(file for part in folders for file in part.files)
    return Checkpoint(path, files, tensors, stamps=tuple(stamp for part in folders for stamp in part.stamps))


def part_prefix(folder: Path, file: Path) -> str:
    """Return what precedes the names in a file of a checkpoint's folder: its sub-folder and a slash, or nothing."""
    below = file.parent.relative_to(folder).as_posix()
    return "" if below == "." else f"{below}/"


def _read_folder(folder: Path) -> Checkpoint:
    candidates = _weight_files(folder)
    if not candidates and (pickles := unconverted(pickles_of_weights(folder.iterdir()))):
        raise refusal(pickles, folder)
    if not candidates:
        check_is_not_distributed(folder)
    if len(candidates) != 1:
        each = f"; to average its files, give '{folder / ('*' + candidates[0].suffix)}'" if candidates else ""
        raise CheckpointError(
            f"{folder} has {len(candidates)} files of weights; a folder that is one checkpoint has one, or shards "
            f"and their model{INDEX}{each}"
        )
    return replace(_read_file(candidates[0]), path=folder)


def _read_file(path: Path) -> Checkpoint:
    if path.name.endswith(INDEX):
        return _sharded(path)
    if is_pickle(path):
        raise refusal([path], path)
    if _SHARD.search(path.stem):
        raise CheckpointError(f"{path} is one of several shards; give the folder with their model{INDEX}")
    return open_file(path)


def _sharded(index: Path) -> Checkpoint:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = list(dict.fromkeys(weight_map.values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("weight_map names no file beside it")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of shards ({type(error).__name__}: {error})") from None
    whole = index.with_name(index.name.removesuffix(".index.json"))
    if whole.exists() and whole.name not in names:
        raise CheckpointError(
            f"{index.parent} has {whole.name} and also the {index.name} of shards: two networks. To take the former, "
            f"which frameworks load, give '{index.parent.parent / '*' / whole.name}'; to take the latter, move it away"
        )
    files = tuple(index.parent / name for name in sorted(names))
    tensors: dict[str, StoredTensor] = {}
    stamps: Stamps = ()
    for file in files:
        if not file.exists():
            raise CheckpointError(f"{index} names {file.name}, which is not there; fetch it, or save the model again")
        stamps += stamps_of([file])
        entries = read_index(file, verify=True).items()
        tensors |= {name: tensor for name, tensor in entries if weight_map.get(name, file.name) == file.name}
    absent = next((name for name in weight_map if name not in tensors), None)
    if absent is not None:
        raise CheckpointError(f"{index} says {shown(absent)} is in {weight_map[absent]}, which does not have it")
    return Checkpoint(index.parent, files, tensors, stamps=stamps)
