"""Which checkpoints are meant: a folder, files or a glob; in the order of training; all of one network."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from dimred.console import note
from dimred.errors import CheckpointError, ConfigError, SeriesError, shown
from dimred.files.run_names import MANIFEST, snapshots_below
from dimred.weights.checkpoint_io import SUFFIXES, Stamp, open_checkpoint, open_unchanged, read_index, stamp_of
from dimred.weights.layout import WeightLayout, is_statistic, trainable_layout
from dimred.weights.series import CheckpointSeries, steps_since_start
from dimred.weights.stored_tensor import StoredTensor

Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
ORDERS = ("step", "name", "mtime")
RECORD = "dimred merge"  # the format of a result's record
_INDEX = ".safetensors.index.json"
_TRIALS = ".merge"
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle")
_CONVERT = (
    'is a pickle, which could run any code; convert it: python -c "import torch; from safetensors.torch import '
    "save_file; save_file({{n: t.contiguous().clone() for n, t in torch.load({0!r}, weights_only=True).items()}}, "
    "{1!r}, {{'format': 'pt'}})\""
)
_EPOCH_AND_STEP = re.compile(r"-(\d{1,18})_(\d{1,18})$")
_NUMBERS = (
    re.compile(r"(?:steps?|iter|iteration|checkpoint|ckpt)[=_-]?(\d{1,18})", re.IGNORECASE),
    re.compile(r"epochs?[=_-]?(\d{1,18})", re.IGNORECASE),
    re.compile(r"(\d{1,18})\D*$"),
)


@dataclass(frozen=True)
class Checkpoint:
    """One network, in one file or in shards.

    Attributes:
        path: the file, or the folder of the shards.
        files: the file, or the shards.
        tensors: name -> (number of the file, where it stands there).
        layout: the weights.
        statistics: BatchNorm's: averaged too, but no weights. What is in neither is copied from the last checkpoint.
        stamps: tell whether each file is as it was.
        step: of training, from the name; the position where the order was given by another rule.
    """

    path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, tuple[int, StoredTensor]]
    layout: WeightLayout
    statistics: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    step: int = 0

    @property
    def label(self) -> str:
        return self.path.parent.name if self.path.stem == "model" else self.path.name

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder to those who load it, with a configuration beside the weights."""
        return self.path.is_dir() or self.path.stem == "model"

    def names_in(self, number: int) -> tuple[str, ...]:
        """The tensors of a file, in the order of their bytes."""
        inside = [(place.pieces[:1], name) for name, (file, place) in self.tensors.items() if file == number]
        return tuple(name for _, name in sorted(inside))

    def open(self, number: int) -> BinaryIO:
        """One of its files, which must be as it was."""
        return open_unchanged(self.files[number], self.stamps[number])


def open_checkpoints(sources: Sources, order: str = "step") -> list[Checkpoint]:
    """The checkpoints that ``sources`` mean, at least two, of one network; the oldest first.

    Args:
        sources: a folder of checkpoints, or files, folders of shards, globs.
        order: ``step``: by the number in the name of the file or folder; ``name``; or ``mtime``.

    Raises:
        ConfigError: nothing is there, or the names don't tell the order.
        SeriesError: there is only one.
        CheckpointError: a file is damaged, a pickle, or of another network than the last.
    """
    if order not in ORDERS:
        raise ConfigError(f"--order is {order!r}; allowed: {', '.join(ORDERS)}")
    given = [str(source) for source in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    paths = [path for source in given for path in _matches(source)]
    steps: list[int] | None = None
    if len(paths) == 1 and paths[0].is_dir() and not _index_files(paths[0]):
        if (paths[0] / MANIFEST).exists():
            series = CheckpointSeries.open(paths[0])
            paths, steps = list(series.paths), [entry.step for entry in series.entries]
        else:
            paths = _inside(paths[0])
    found = [read_one(path) for path in dict.fromkeys(paths)]
    if len(found) < 2:
        raise SeriesError(f"CHECKPOINTS is {given[0]!r}, which is one checkpoint; give two or more")
    if order == "name":
        found.sort(key=lambda checkpoint: str(checkpoint.path))
    elif order == "mtime":
        found.sort(key=lambda checkpoint: max(modified for _, modified, _ in checkpoint.stamps))
    if order != "step":
        steps = list(range(1, len(found) + 1))
    numbered = zip(found, steps or _steps([checkpoint.path for checkpoint in found]), strict=True)
    ordered = sorted((replace(checkpoint, step=step) for checkpoint, step in numbered), key=lambda one: one.step)
    for checkpoint in ordered[:-1]:
        difference = first_difference(checkpoint, ordered[-1])
        if difference:
            raise CheckpointError(f"The checkpoints are of different networks: {difference}.")
    return ordered


def select(
    checkpoints: Sequence[Checkpoint], last: int | None, from_step: int | None, to_step: int | None
) -> list[Checkpoint]:
    """Those from a step to a step, of these the last; SeriesError where none is left."""
    if last is not None and last < 1:
        raise ConfigError(f"--last is {last}; give a whole number of at least 1")
    low = checkpoints[0].step if from_step is None else from_step
    high = checkpoints[-1].step if to_step is None else to_step
    chosen = [checkpoint for checkpoint in checkpoints if low <= checkpoint.step <= high]
    if not chosen:
        raise SeriesError(
            f"--from-step {low} and --to-step {high} leave none of the {len(checkpoints)} checkpoints, whose steps are "
            f"{checkpoints[0].step} to {checkpoints[-1].step}"
        )
    if last is not None and last > len(chosen):
        note(f"--last is {last}, but there are {len(chosen)} checkpoints; all of them are taken")
    return chosen if last is None else chosen[-last:]


def first_difference(one: Checkpoint, other: Checkpoint) -> str | None:
    """The first weight or statistic in which two checkpoints differ, in words that name both."""
    averaged = [{*it.layout.names, *it.statistics} for it in (one, other)]
    for name in sorted(averaged[0] | averaged[1]):
        for has, lacks, names in ((one, other, averaged[1]), (other, one, averaged[0])):
            if name not in names:
                return f"{shown(name)} is in {has.path} and not in {lacks.path}"
        here, there = one.tensors[name][1], other.tensors[name][1]
        for what in ("shape", "dtype"):
            if getattr(here, what) != getattr(there, what):
                left, right = getattr(here, what), getattr(there, what)
                return f"{shown(name)} has the {what} {left} in {one.path} and {right} in {other.path}"
    return None


def _matches(source: str) -> list[Path]:
    """The path, or what the glob matches."""
    path = Path(source)
    root = Path(path.anchor or ".")
    found = [path] if path.exists() else sorted(root.glob(str(path.relative_to(path.anchor))))
    if not found:
        raise ConfigError(f"CHECKPOINTS is {source!r}: there is no such file or folder, and nothing matches it")
    return found


def _inside(folder: Path) -> list[Path]:
    """The checkpoints in a folder: numbered folders as trainers leave them, else the files; without earlier results."""
    if where := snapshots_below(folder):
        raise ConfigError(f"CHECKPOINTS is {str(folder)!r}, the folder of a run{where}")
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and not _is_result(path))
    folders = [path for path in entries if path.is_dir() and re.search(r"\d", path.name) and _weight_files(path)]
    files = [path for path in entries if path.suffix in SUFFIXES]
    if folders or files:
        return folders or files
    pickles = [path for path in folder.rglob("*") if path.suffix in _PICKLES]
    if pickles:
        raise _pickle(pickles[0])
    raise ConfigError(f"CHECKPOINTS is {str(folder)!r}, a folder without a .safetensors or .ckpt file; name another")


def record_path(out: Path) -> Path:
    """Where the record of a result is."""
    return out.with_name(out.name + ".json")


def work_folder(out: Path) -> Path:
    """Where the trials of a result are."""
    return out.with_name(out.name + _TRIALS)


def read_record(out: Path) -> dict[str, Any]:
    """The record of a result; empty for another file or folder."""
    try:
        record = json.loads(record_path(out).read_bytes())
    except (OSError, ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) and record.get("format") == RECORD else {}


def _is_result(path: Path) -> bool:
    return bool(read_record(path)) or path.suffix == _TRIALS


def _weight_files(folder: Path) -> list[Path]:
    return _index_files(folder) or sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)


def _index_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_INDEX}"))


def read_one(path: Path) -> Checkpoint:
    """A checkpoint with the places of its tensors; its step is not known yet."""
    main = path
    if path.is_dir():
        candidates = _weight_files(path) or sorted(file for file in path.iterdir() if file.suffix in _PICKLES)
        if len(candidates) != 1:
            raise CheckpointError(
                f"{path} has {len(candidates)} files of weights; a folder that is one checkpoint has one, or shards "
                f"and their model{_INDEX}"
            )
        main = candidates[0]
    if main.name.endswith(_INDEX):
        return _sharded(main)
    if main.suffix in _PICKLES or (main.suffix == ".ckpt" and _begins_like_a_pickle(main)):
        raise _pickle(main)
    if re.search(r"-\d+-of-\d+$", main.stem):
        raise CheckpointError(f"{main} is one of several shards; give the folder with their model{_INDEX}")
    return _checkpoint(path, (main,), {name: (0, place) for name, place in read_index(main, verify=True).items()})


def _sharded(index: Path) -> Checkpoint:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = list(dict.fromkeys(weight_map.values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("weight_map names no file beside it")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of shards ({type(error).__name__}: {error})") from None
    files = tuple(index.parent / name for name in sorted(names))
    tensors: dict[str, tuple[int, StoredTensor]] = {}
    for number, file in enumerate(files):
        if not file.exists():
            raise CheckpointError(f"{index} names {file.name}, which is not there; fetch it, or save the model again")
        for name, place in read_index(file, verify=True).items():
            if weight_map.get(name, file.name) == file.name:
                tensors[name] = (number, place)
    missing = next((name for name in weight_map if name not in tensors), None)
    if missing is not None:
        raise CheckpointError(f"{index} says {shown(missing)} is in {weight_map[missing]}, which does not have it")
    return _checkpoint(index.parent, files, tensors)


def _checkpoint(path: Path, files: tuple[Path, ...], tensors: Mapping[str, tuple[int, StoredTensor]]) -> Checkpoint:
    places = {name: place for name, (_, place) in tensors.items()}
    layout, ignored = trainable_layout(places, path)
    statistics = tuple(name for name in ignored if is_statistic(name) and places[name].is_float)
    return Checkpoint(path, files, tensors, layout, statistics, tuple(stamp_of(file.stat()) for file in files))


def _begins_like_a_pickle(path: Path) -> bool:
    with open_checkpoint(path) as file:
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))


def _pickle(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} " + _CONVERT.format(str(path), str(path.with_suffix(".safetensors"))))


def _steps(paths: Sequence[Path]) -> list[int]:
    """The step of each checkpoint, from the numbers in the names of files or folders."""
    names = [path.name.removesuffix(_INDEX).removesuffix(path.suffix if path.is_file() else "") for path in paths]
    pairs = [_EPOCH_AND_STEP.search(name) for name in names]
    if all(pairs):
        keys = [(int(match[1]), int(match[2])) for match in pairs if match]
        if len(set(keys)) == len(keys):
            return steps_since_start(keys)
    for pattern in _NUMBERS:
        for texts in (names, [path.parent.name for path in paths]):
            matches = [pattern.search(text) for text in texts]
            found = {int(match[1]) for match in matches if match}
            if len(found) == len(paths):
                return [int(match[1]) for match in matches if match]
    raise ConfigError(
        f"--order is 'step', but no number in the names tells it ({', '.join(path.name for path in paths[:3])}, ...); "
        "use --order name or --order mtime"
    )
