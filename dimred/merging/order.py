"""Order checkpoints by the whole numbers in the names of files or folders, by names, or by times."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from dimred.checkpoints.checkpoint_io import SUFFIXES
from dimred.errors import ConfigError
from dimred.run_files.run_names import NUMBER, epochs_and_steps, network_of

ORDERS = ("step", "name", "mtime")
BY_NAME = "order='name'"  # settings, as a message gives them
BY_TIME = "order='mtime'"
# A number behind one of these words counts the slices or layers of one network, which can't be averaged.
_SLICE = re.compile(r"(?<![a-z])(?:rank|mp|tp|pp|shard|part|slice|layer|consolidated)[=_.-]?$", re.IGNORECASE)


class UnclearOrderError(ConfigError):
    """The names of checkpoints don't show which is older; ``problem`` is a sentence that says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"order is 'step', but {problem}; leave out the checkpoints of other runs, use {BY_NAME} or {BY_TIME}, "
            "or rename the files or folders so that one whole number grows",
            argument="order",
            settings=[BY_NAME, BY_TIME],
        )


def steps_of(files: Mapping[Path, Sequence[Path]], order: str = "step") -> list[int]:
    """Return the step of each checkpoint, in the order given.

    Args:
        files: path of each checkpoint, a file or a folder -> the files of its weights.
        order: one of ``ORDERS``: ``step``, from the names; ``name``, sorted with 9 before 10, or ``mtime``: the steps
            are then 1, 2, 3 and so on.

    Raises:
        ConfigError: ``order`` leaves in doubt which checkpoint is older.
        SeriesError: the names show that the checkpoints are of several runs.
        OSError: the time of a file can't be read.
    """
    if order == "step":
        return _from_names(list(files))
    if order == "name":
        paths = sorted(files, key=_natural)
    else:
        times = {path: max(file.stat().st_mtime_ns for file in parts) for path, parts in files.items()}
        paths = sorted(files, key=times.__getitem__)
        for path, other in pairwise(paths):
            if times[path] == times[other]:
                raise ConfigError(
                    f"order is 'mtime', but {path} and {other} were written at the same time; use order='step' or "
                    f"{BY_NAME}",
                    argument="order",
                    settings=["order='step'", BY_NAME],
                )
    return [paths.index(path) + 1 for path in files]


def _natural(path: Path) -> list[tuple[str, int]]:
    """Return a key that sorts names with their numbers as numbers."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", str(path))]


def _from_names(paths: Sequence[Path]) -> list[int]:
    if len(paths) == 1:
        return [1]
    names = [_name_of(path) for path in paths]
    if None not in map(network_of, names):
        return [step for _, step in epochs_and_steps(names)]
    # Files named alike, such as model.safetensors, are told apart by their folders.
    return _steps_in([str(path.parent / name) for path, name in zip(paths, names, strict=True)])


def _name_of(path: Path) -> str:
    return path.stem if path.suffix in SUFFIXES else path.name


def _steps_in(names: Sequence[str]) -> list[int]:
    """Return each path's step: the last of its whole numbers that grows from each path to the next.

    The paths must differ in numbers alone, and no other whole number may fall. Decimals, such as a loss, are no steps.
    """
    columns = _varying_numbers(names)
    by_size = zip(*sorted(zip(*columns, strict=True)), strict=True)
    if any(before > after for column in by_size for before, after in pairwise(column)):
        raise UnclearOrderError(f"one number in the names falls where another grows ({_few(names)})")
    growing = [column for column in columns if len(set(column)) == len(column)]
    if not growing:
        raise UnclearOrderError(f"no whole number grows from each name to the next ({_few(names)})")
    return growing[-1]


def _varying_numbers(names: Sequence[str]) -> list[list[int]]:
    """Return a list for each place where the paths have different whole numbers, with one number for each path."""
    patterns = [NUMBER.sub("#", name) for name in names]
    for name, pattern in zip(names, patterns, strict=True):
        if pattern != patterns[0]:
            raise UnclearOrderError(f"{name!r} is not named like {names[0]!r} ({_few(names)})")
    columns = []
    for matches in zip(*map(NUMBER.finditer, names), strict=True):
        texts = [match[0] for match in matches]
        if any("." in text for text in texts):
            continue
        numbers = [int(text) for text in texts]
        if len(set(numbers)) == 1:
            continue
        if _SLICE.search(names[0][: matches[0].start()]):
            raise UnclearOrderError(f"a number that varies counts the slices or layers of one network ({_few(names)})")
        columns.append(numbers)
    return columns


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
