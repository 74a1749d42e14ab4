"""Find the checkpoints in another program's folder, and open one: a file, or a folder with one file or shards."""

import json
import logging
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from glob import escape
from itertools import chain
from pathlib import Path

from dimred.checkpoints.checkpoint_io import SUFFIXES, Stamps, read_index, stamps_of
from dimred.checkpoints.stored_tensor import StoredTensor, reading
from dimred.errors import CheckpointError, ConfigError, shown
from dimred.io.regular_file import read_regular
from dimred.merging.order import BY_NAME, BY_TIME
from dimred.merging.pickles import PICKLES, converted_path, is_pickle, refusal
from dimred.merging.record import MERGE_FOLDER, has_record
from dimred.merging.saved_network import SavedNetwork
from dimred.run_files.run_names import NUMBER, snapshots_below, unplaced_in

_log = logging.getLogger(__name__)

INDEX = ".safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
_MOST_GLOBS = 4  # in a message
_SHARD = re.compile(r"-\d+-of-\d+$")


def checkpoints_in(folder: Path, order: str, argument: str) -> list[Path]:
    """List the checkpoints in a folder, which are files or folders, sorted by name.

    For the order ``step`` these are the files, or the folders, whose names differ in numbers alone. Others are passed
    over; one that seems to belong to the series is refused (see ``unplaced_in``). For any other order all are taken,
    and they must be of one kind. Results of merges are left out.

    Args:
        folder: the folder.
        order: see ``steps_of``.
        argument: what the user calls the folder, for errors.

    Raises:
        ConfigError: there are none, or several series or kinds; one has no place in the series; or the folder is a
            run's, whose snapshots are in a folder below.
        CheckpointError: one of them is a pickle that was not converted.
    """
    below = snapshots_below(folder)
    if below is not None:
        raise ConfigError(
            f"{argument} is {str(folder)!r}, the folder of a run; the snapshots of this run are in {str(below)!r}",
            argument=argument,
        )
    found = _checkpoints_or_pickles(folder)
    if not found:
        raise ConfigError(
            f"{argument} is {str(folder)!r}, which has no .safetensors or .ckpt file; name another folder",
            argument=argument,
        )
    chosen = _only_series(folder, found, order, argument)
    others = [path for path in found if path not in chosen]
    if unplaced := unplaced_in(_stems(chosen), _stems(others)):
        raise ConfigError(
            f"{argument} is {str(folder)!r}, where no number says where {unplaced!r} belongs among the checkpoints "
            f"named like {_stems(chosen)[0]!r}; give the ones you mean, or use {BY_NAME} or {BY_TIME}",
            argument=argument,
            settings=[BY_NAME, BY_TIME],
        )
    for path in others:
        _log.info(f"{path} is not named like the other checkpoints, and is passed over")
    if pickles := [path for path in chosen if not path.is_dir() and is_pickle(path)]:
        raise refusal(pickles)
    return distinct(chosen)


def _checkpoints_or_pickles(folder: Path) -> list[Path]:
    """List a folder's files and folders with weights, by name, except merges' results and converted pickles."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix == MERGE_FOLDER or has_record(path) or not _has_weights(path):
            continue
        is_converted = path.is_file() and is_pickle(path) and converted_path(path).exists()
        if not is_converted:
            found.append(path)
    return found


def _only_series(folder: Path, paths: Sequence[Path], order: str, argument: str) -> list[Path]:
    """Return the paths that form one series; ConfigError if there are several series or kinds, or none."""
    groups: defaultdict[tuple[bool, str], list[Path]] = defaultdict(list)
    for path in paths:
        groups[path.is_dir(), _pattern(path) if order == "step" else ""].append(path)
    if len(groups) == 1:
        return list(paths)
    series = [group for group in groups.values() if len(group) > 1 or order != "step"]
    if len(series) == 1:
        return series[0]
    if series:
        raise ConfigError(
            f"{argument} is {str(folder)!r}, which has several series or kinds of checkpoints; give the ones you mean, "
            f"{_globs_of(folder, series)}",
            argument=argument,
        )
    raise ConfigError(
        f"{argument} is {str(folder)!r}, which has no checkpoints whose names differ only in numbers; give the ones "
        f"you mean, {_globs_of(folder, groups.values())}, or use {BY_NAME} or {BY_TIME}",
        argument=argument,
        settings=[BY_NAME, BY_TIME],
    )


def _globs_of(folder: Path, groups: Iterable[Sequence[Path]]) -> str:
    """Return globs for some groups of paths in a folder, for a message."""
    names = {NUMBER.sub("*", group[0].name) for group in groups}
    globs = sorted(f"{escape(str(folder))}/{name}" for name in names)
    return " or ".join(map(repr, globs[:_MOST_GLOBS]))


def _has_weights(path: Path) -> bool:
    """Return whether a file has the ending of a file of weights, or a folder holds such a file."""
    return any(file.name.endswith((*SUFFIXES, *PICKLES)) for file in (path.iterdir() if path.is_dir() else [path]))


def _pattern(path: Path) -> str:
    """Return the name without its ending, with # in place of each number, so that a series has one pattern."""
    return NUMBER.sub("#", _stems([path])[0])


def _stems(paths: Iterable[Path]) -> list[str]:
    """Return the names of files, without their endings, and of folders."""
    return [path.name if path.is_dir() else converted_path(path).stem for path in paths]


def distinct(paths: Iterable[Path]) -> list[Path]:
    """Leave out other names of a file or folder that is listed already, and log them: it would count twice.

    A link whose name has another step counts as another checkpoint: a store of files keeps two checkpoints with equal
    bytes once, and links to that file.

    Raises:
        CheckpointError: one of them does not exist, or can't be read.
    """
    kept: defaultdict[object, list[Path]] = defaultdict(list)
    paths = list(dict.fromkeys(paths))
    for path in sorted(paths, key=lambda path: (-_whole_numbers(path).total(), path.is_symlink())):
        names = kept[_identity(path)]
        other = next((name for name in names if not _has_own_step(path, name)), None)
        if other is None:
            names.append(path)
        else:
            _log.info(f"{path} is another name for {other}, and is passed over")
    distinct_paths = {*chain.from_iterable(kept.values())}
    return [path for path in paths if path in distinct_paths]


def is_name_of(path: Path, other: Path) -> bool:
    """Return whether a path is only another name of a checkpoint; CheckpointError if one can't be read."""
    return _identity(path) == _identity(other) and not _has_own_step(path, other)


def _identity(path: Path) -> object:
    """Return an identity, equal for two names of one file or folder; CheckpointError if it can't be read.

    Inode numbers are compared for hard links only, because some file systems give several files one number.
    """
    with reading(path):
        status = path.stat()
    is_linked = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    return (status.st_dev, status.st_ino) if is_linked else os.path.realpath(path)


def _has_own_step(path: Path, other: Path) -> bool:
    return bool(_whole_numbers(path) - _whole_numbers(other))


def _whole_numbers(path: Path) -> Counter[str]:
    """Count the whole numbers in a path; one of them may be its step."""
    text = os.path.abspath(path)  # noqa: PTH100 (links must not be followed)
    return Counter(number for number in NUMBER.findall(text) if number.isdecimal())


def index_files(folder: Path) -> list[Path]:
    """List the indices of shards of ``.safetensors`` in a folder, sorted."""
    return sorted(folder.glob(f"*{INDEX}"))


def weight_files(path: Path) -> list[Path]:
    """List the files that may hold the weights of a checkpoint, a file or a folder."""
    return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]


def read_one(path: Path) -> SavedNetwork:
    """Open a checkpoint: a file, or a folder with one file or shards. Its step is left at 0.

    Raises:
        CheckpointError: a file is damaged or a pickle, or ``path`` is not a single checkpoint.
    """
    if path.is_dir():
        return _read_folder(path)
    if is_pickle(path):
        raise refusal([path])
    if _SHARD.search(path.stem) or path.name.endswith(INDEX):
        raise CheckpointError(f"{path} is one of several shards, or their index; give their folder")
    return SavedNetwork.open(path)


def _read_folder(folder: Path) -> SavedNetwork:
    indices = index_files(folder)
    files = indices or [path for path in weight_files(folder) if not is_pickle(path)]
    pickles = sorted(path for path in folder.iterdir() if path.name.endswith((*PICKLES, ".ckpt")))
    if pickles and not files:
        raise refusal(pickles)
    if len(files) != 1:
        each = f"; to average its files, give '{folder / ('*' + files[0].suffix)}'" if files else ""
        raise CheckpointError(
            f"{folder} has {len(files)} files of weights; a folder that is one checkpoint has one, or shards "
            f"and their model{INDEX}{each}"
        )
    return _sharded(files[0]) if indices else replace(read_one(files[0]), path=folder)


def _sharded(index: Path) -> SavedNetwork:
    try:
        weight_map = json.loads(read_regular(index))["weight_map"]
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
            raise CheckpointError(f"{index} names {file.name}, which is missing; fetch it, or save the model again")
        stamps += stamps_of([file])
        entries = read_index(file, verify=True).items()
        tensors |= {name: tensor for name, tensor in entries if weight_map.get(name, file.name) == file.name}
    absent = next((name for name in weight_map if name not in tensors), None)
    if absent is not None:
        raise CheckpointError(f"{index} says {shown(absent)} is in {weight_map[absent]}, which does not have it")
    return SavedNetwork(index.parent, files, tensors, stamps=stamps)
