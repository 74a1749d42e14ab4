"""Find the checkpoints to merge in folders, files or globs, order them by training step, and compare them."""

import json
import logging
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dimred.averaging.mean import is_constant
from dimred.checkpoints.checkpoint_io import SUFFIXES, Checkpoint, open_checkpoint, open_file, read_index
from dimred.checkpoints.series import CheckpointSeries, steps_since_start
from dimred.checkpoints.stored_tensor import StoredTensor, reading
from dimred.errors import CheckpointError, ConfigError, SeriesError, shown
from dimred.io.run_names import MANIFEST, snapshots_below
from dimred.merging.lora import check_adapters
from dimred.merging.record import WORK_FOLDER, has_record

_log = logging.getLogger(__name__)

Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
ORDERS = ("step", "name", "mtime")
_INDEX = ".safetensors.index.json"
_OF_FOLDERS = ("model", "adapter_model")  # names that say nothing about a file; its folder's name does
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle")
_STATES = ("optimizer", "scheduler", "rng_state", "training_args")  # a trainer's pickles beside those of the weights
_CONVERT = (
    "import torch; from safetensors.torch import save_file; save_file({{n: t.contiguous().clone() for n, t in "
    'torch.load({0}, weights_only=True).items()}}, {1}, {{"format": "pt"}})'
)
_EPOCH_AND_STEP = re.compile(r"-(\d{1,18})_(\d{1,18})$")
_NUMBERS = (
    re.compile(r"(?:steps?|iter|iteration|checkpoint|ckpt)[=_-]?(\d{1,18})", re.IGNORECASE),
    re.compile(r"epochs?[=_-]?(\d{1,18})", re.IGNORECASE),
    re.compile(r"(?<!\d)(?<!\d\.)(\d{1,18})\D*$"),  # not the decimals of a loss
)


def open_checkpoints(sources: Sources, order: str = "step") -> list[Checkpoint]:
    """Open the checkpoints in ``sources``, and check that they are of one network.

    Args:
        sources: one folder of checkpoints; or any number of files, folders of shards and globs.
        order: what to sort by: ``step``, from the manifest or the file's or folder's name; ``name``; or ``mtime``.

    Returns:
        At least two checkpoints, the oldest first.

    Raises:
        ConfigError: ``order`` is unknown, there is no checkpoint, or the names don't tell the order.
        SeriesError: there is only one checkpoint, or a manifest is damaged.
        CheckpointError: a file can't be read, is damaged or a pickle, or is not of the same network as the last.
    """
    if order not in ORDERS:
        raise ConfigError(f"--order is {order!r}; allowed: {', '.join(ORDERS)}")
    given = listed(sources)
    if not given:
        raise ConfigError("CHECKPOINTS is empty; give a folder, or two or more files")
    steps: list[int] | None = None
    with reading(given[0]):
        paths = [path for source in given for path in _matches(source)]
        if len(paths) == 1 and paths[0].is_dir() and not _index_files(paths[0]):
            if (paths[0] / MANIFEST).exists():
                series = CheckpointSeries.open(paths[0])
                paths, steps = list(series.paths), series.steps
            else:
                paths = _inside(paths[0])
        found = [read_one(path) for path in dict.fromkeys(paths)]
    if len(found) < 2:
        raise SeriesError(f"CHECKPOINTS is {given[0]!r}, which is one checkpoint; give two or more")
    if order == "name":
        found.sort(key=lambda checkpoint: str(checkpoint.path))
    elif order == "mtime":
        found.sort(key=lambda checkpoint: max(file.stat().st_mtime_ns for file in checkpoint.files))
    if order != "step":
        steps = list(range(1, len(found) + 1))
    numbered = zip(found, steps or _steps([checkpoint.path for checkpoint in found]), strict=True)
    ordered = sorted((replace(checkpoint, step=step) for checkpoint, step in numbered), key=lambda one: one.step)
    check_adapters(ordered)
    for checkpoint in ordered[:-1]:
        difference = first_difference(checkpoint, ordered[-1])
        if difference:
            raise CheckpointError(f"The checkpoints are of different networks: {difference}.")
    return ordered


def listed(sources: Sources) -> list[str]:
    """Return one path or several paths as a list of strings."""
    return [str(source) for source in ([sources] if isinstance(sources, str | os.PathLike) else sources)]


def select(
    checkpoints: Sequence[Checkpoint], last: int | None, from_step: int | None, to_step: int | None
) -> list[Checkpoint]:
    """Select checkpoints by their steps.

    Args:
        checkpoints: the checkpoints, oldest first.
        last: number of checkpoints to keep, the newest of those between the steps; None for all.
        from_step, to_step: first and last step to keep; None for no limit.

    Raises:
        ConfigError: ``last`` is below 1.
        SeriesError: no checkpoint is left.
    """
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
        _log.info(f"--last is {last}, but there are {len(chosen)} checkpoints; all of them are taken")
    return chosen if last is None else chosen[-last:]


def first_difference(one: Checkpoint, other: Checkpoint) -> str | None:
    """Describe the first name, shape or type in which two checkpoints differ, naming both; None if there is none."""
    averaged = [{*it.layout.names, *it.statistics, *it.integers} for it in (one, other)]
    for name in sorted(averaged[0] | averaged[1]):
        for has, lacks, names in ((one, other, averaged[1]), (other, one, averaged[0])):
            if name not in names:
                return f"{shown(name)} is in {has.path} and not in {lacks.path}"
        here, there = one.tensors[name], other.tensors[name]
        for what in ("shape", "dtype"):
            if getattr(here, what) != getattr(there, what):
                left, right = getattr(here, what), getattr(there, what)
                return f"{shown(name)} has the {what} {left} in {one.path} and {right} in {other.path}"
    return None


def check_integers(checkpoints: Sequence[Checkpoint]) -> None:
    """Check that integer tensors are equal in all checkpoints: they have no mean, and are copied from one of them.

    Raises:
        CheckpointError: an integer or bool tensor differs between two checkpoints, or a file can't be read.
    """
    for name in checkpoints[-1].integers:
        if len(checkpoints) > 1 and not is_constant(checkpoints, name):
            raise CheckpointError(
                f"{name!r} has the type {checkpoints[-1].tensors[name].dtype} and differs between the checkpoints; "
                "integers, such as quantised weights, can't be averaged: merge the checkpoints from before they were "
                "quantised, or save them without this tensor"
            )


def label(checkpoint: Checkpoint) -> str:
    """Return a short name for a checkpoint: its file's, or its folder's."""
    return checkpoint.path.parent.name if checkpoint.path.stem in _OF_FOLDERS else checkpoint.path.name


def is_folder(checkpoint: Checkpoint) -> bool:
    """Return whether frameworks load the checkpoint as a folder, with a configuration beside the weights."""
    return checkpoint.path.is_dir() or checkpoint.path.stem in _OF_FOLDERS


def _matches(source: str) -> list[Path]:
    """Return ``source`` as a path, or the paths that match it as a glob; ConfigError if there are none."""
    path = Path(source)
    found = [path] if path.exists() else []
    with suppress(ValueError):  # raised for a "**" beside other characters
        found = found or sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    if not found:
        raise ConfigError(f"CHECKPOINTS is {source!r}: there is no such file or folder, and nothing matches it")
    return found


def _inside(folder: Path) -> list[Path]:
    """List the checkpoints in a folder: numbered folders or, if there are none, files; omit results of merges."""
    if where := snapshots_below(folder):
        raise ConfigError(f"CHECKPOINTS is {str(folder)!r}, the folder of a run{where}")
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))
    entries = sorted(path for path in visible if path.suffix != WORK_FOLDER and not has_record(path))
    folders = [path for path in entries if path.is_dir() and re.search(r"\d", path.name) and _weight_files(path)]
    files = [path for path in entries if path.suffix in SUFFIXES]
    converted = {path.with_suffix(".ckpt") for path in files if path.suffix == ".safetensors"}
    files = [path for path in files if path not in converted or not _begins_like_a_pickle(path)]
    if folders or files:
        return folders or files
    if pickles := _pickles(folder.rglob("*")):
        raise _pickle(pickles[0])
    raise ConfigError(f"CHECKPOINTS is {str(folder)!r}, a folder without a .safetensors or .ckpt file; name another")


def _pickles(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix in _PICKLES and not path.name.startswith(_STATES))


def _weight_files(folder: Path) -> list[Path]:
    return _index_files(folder) or sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)


def _index_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_INDEX}"))


def read_one(path: Path) -> Checkpoint:
    """Open a checkpoint: a file, a folder with one file of weights, or shards. Its step is left at 0.

    Raises:
        CheckpointError: a file is damaged or a pickle, or ``path`` is not a single checkpoint.
    """
    main = path
    if path.is_dir():
        candidates = _weight_files(path) or _pickles(path.iterdir())
        if len(candidates) != 1:
            each = f"; to average its files, give {path / ('*' + candidates[0].suffix)}" if candidates else ""
            raise CheckpointError(
                f"{path} has {len(candidates)} files of weights; a folder that is one checkpoint has one, or shards "
                f"and their model{_INDEX}{each}"
            )
        main = candidates[0]
    if main.name.endswith(_INDEX):
        return _sharded(main)
    if main.suffix in _PICKLES or (main.suffix == ".ckpt" and _begins_like_a_pickle(main)):
        raise _pickle(main)
    if re.search(r"-\d+-of-\d+$", main.stem):
        raise CheckpointError(f"{main} is one of several shards; give the folder with their model{_INDEX}")
    return replace(open_file(main), path=path)


def _sharded(index: Path) -> Checkpoint:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = list(dict.fromkeys(weight_map.values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("weight_map names no file beside it")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of shards ({type(error).__name__}: {error})") from None
    files = tuple(index.parent / name for name in sorted(names))
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        if not file.exists():
            raise CheckpointError(f"{index} names {file.name}, which is not there; fetch it, or save the model again")
        found = read_index(file, verify=True).items()
        tensors |= {name: tensor for name, tensor in found if weight_map.get(name, file.name) == file.name}
    missing = next((name for name in weight_map if name not in tensors), None)
    if missing is not None:
        raise CheckpointError(f"{index} says {shown(missing)} is in {weight_map[missing]}, which does not have it")
    return Checkpoint(index.parent, files, tensors)


def _begins_like_a_pickle(path: Path) -> bool:
    with open_checkpoint(path) as file, reading(path):
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))


def _pickle(path: Path) -> CheckpointError:
    names = (json.dumps(str(name), ensure_ascii=False) for name in (path, path.with_suffix(".safetensors")))
    convert = shlex.quote(_CONVERT.format(*names))
    return CheckpointError(f"{path} is a pickle, which could run any code; convert it: python -c {convert}")


def _steps(paths: Sequence[Path]) -> list[int]:
    """Read the step of each checkpoint from the numbers in its file's or folder's name.

    Raises:
        ConfigError: no kind of number is in all names and different in each.
    """
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
        "--order is 'step', but no number is in all names and different in each "
        f"({', '.join(path.name for path in paths[:3])}, ...); use --order name or --order mtime"
    )
