"""Order checkpoints by the numbers in the names of their files or folders, where these leave no doubt."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import islice, pairwise
from pathlib import Path

from dimred.checkpoints.checkpoint_io import SUFFIXES
from dimred.checkpoints.folder import INDEX
from dimred.errors import ConfigError, SeriesError
from dimred.io.run_names import without_dots

ORDERS = ("step", "name", "mtime")
_EPOCH_AND_STEP = re.compile(r"(?P<prefix>.+)-(?P<epoch>\d{1,18})_(?P<step>\d{1,18})")  # as MindSpore writes them
_LEVELS_ABOVE = 2  # folders around a file whose names may tell what its own does not
# Also 5e4, 500k, 1.5M, 1B, 2T, 12,000.
_NUMBER = re.compile(
    r"(?<!\d)(?P<digits>\d{1,3}(?:,\d{3})+(?![\d,])|\d{1,18}(?:\.\d{1,18})?)(?:e(?P<exponent>\d{1,2})(?![a-z\d]))?(?P<unit>[kmbt](?![a-z\d]))?(?!\d)",
    re.IGNORECASE,
)
_UNITS = {None: 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_WORDS = ("steps?|iter(?:ation)?s?|updates?", "epochs?|ep", "checkpoint|ckpt")
_STEP, _EPOCH, _CHECKPOINT = (
    re.compile(rf"(?<![a-z])(?:{words})[=_-]?{_NUMBER.pattern}", re.IGNORECASE) for words in _WORDS
)
_ANY_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(_WORDS)})[=_-]?(?=\d)", re.IGNORECASE)
_GOES_ON = re.compile(rf"{_STEP.pattern}_\d{{3}}(?!\d)", re.IGNORECASE)  # 12_000, or step 12 and another number


def epochs_and_steps(files: Mapping[Path, Sequence[Path]], order: str = "step") -> list[tuple[int, int]]:
    """Return the (epoch, step) of each checkpoint, in the order given; an epoch that isn't known is 0.

    Names are read if exactly one number in them varies, or if numbers are called ``step``, ``epoch`` or
    ``checkpoint``, as in ``epoch=3-step=100``, or if they end like MindSpore's, as in ``resnet-3_625``.

    Args:
        files: path of each checkpoint, a file or a folder -> the files of its weights.
        order: ``step``, from the names; ``name`` or ``mtime``: the steps are then 1, 2, 3 and so on.

    Raises:
        ConfigError: ``order`` is unknown, or leaves in doubt which checkpoint is older.
        SeriesError: by their names, the checkpoints are of several runs, or two have the same epoch and step.
        OSError: the time of a file can't be read.
    """
    check_order(order)
    if order == "step":
        return _from_names(list(files))
    if order == "name":
        paths = sorted(files, key=str)
    else:
        times = {path: max(file.stat().st_mtime_ns for file in parts) for path, parts in files.items()}
        paths = sorted(files, key=times.__getitem__)
        for path, other in pairwise(paths):
            if times[path] == times[other]:
                raise ConfigError(
                    f"order is 'mtime', but {path} and {other} were written at the same time; use order='step' or "
                    "order='name'"
                )
    steps = {path: step for step, path in enumerate(paths, start=1)}
    return [(0, steps[path]) for path in files]


def check_order(order: str) -> None:
    """Check that ``order`` is known; ConfigError if it is not."""
    if order not in ORDERS:
        raise ConfigError(f"order is {order!r}; allowed: {', '.join(ORDERS)}")


def _name_of(path: Path) -> str:
    ending = next((ending for ending in (INDEX, *SUFFIXES) if path.name.endswith(ending)), "")
    return path.name.removesuffix(ending)


def _from_names(paths: Sequence[Path]) -> list[tuple[int, int]]:
    file_names = [_name_of(path) for path in paths]
    folders = zip(*([folder.name for folder in without_dots(path).parents] for path in paths), strict=False)
    # Files named alike, such as model.safetensors, are told apart by their folders.
    names = next((names for names in (file_names, *islice(folders, _LEVELS_ABOVE)) if len(set(names)) > 1), file_names)
    matches = [_EPOCH_AND_STEP.fullmatch(name) for name in names]
    if pairs := [match for match in matches if match] if all(matches) else []:
        _check_is_one_run(match["prefix"] for match in pairs)
        return _in_order([(int(match["epoch"]), int(match["step"])) for match in pairs], paths)
    epochs, steps = _named(_EPOCH, names), _named(_STEP, names)
    if steps and any(map(_GOES_ON.search, names)):
        raise _doubt("their steps may go on after an underscore", names)
    checkpoints = None if epochs or steps else _named(_CHECKPOINT, names)
    if epochs or steps or checkpoints:
        _check_is_one_run(_NUMBER.sub("#", _ANY_WORD.split(name, maxsplit=1)[0]) for name in names)
    if epochs and steps:
        return _in_order(list(zip(epochs, steps, strict=True)), paths)
    if epochs:
        return _in_order([(epoch, epoch) for epoch in epochs], paths)
    if numbers := steps or checkpoints or _only_varying(names):
        return _in_order([(0, number) for number in numbers], paths)
    if len(paths) == 1:
        return [(0, 1)]
    raise _doubt("the names don't tell it", names)


def _check_is_one_run(prefixes: Iterable[str]) -> None:
    """Check that what stands before epoch and step is the same in all names; SeriesError if it is not."""
    runs = sorted(set(prefixes))
    if len(runs) > 1:
        raise SeriesError(
            f"There are checkpoints of several runs: {', '.join(map(repr, runs[:4]))}. Move each run to a folder of "
            "its own, or use order='name' or order='mtime'."
        )


def _in_order(keys: list[tuple[int, int]], paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Return (epoch, step since the start) for (epoch, step), which may count from the epoch's start.

    Raises:
        SeriesError: two checkpoints have the same epoch and step.
    """
    pairs = sorted(zip(keys, paths, strict=True))
    for (key, path), (other_key, other) in pairwise(pairs):
        if key == other_key:
            raise SeriesError(
                f"{path} and {other} are of one epoch and step; move one of them away, or use order='name' or "
                "order='mtime'."
            )
    steps = steps_since_start(keys)
    return [(epoch, step) for (epoch, _), step in zip(keys, steps, strict=True)]


def steps_since_start(keys: Sequence[tuple[int, int]]) -> list[int]:
    """Compute steps since the start of training from the (epoch, step) in each file name.

    MindSpore counts steps within an epoch, other frameworks from the start of training. If the steps don't increase
    from file to file, they are taken as steps within an epoch, and the largest as an epoch's length. Epochs then count
    from 0 if a file of epoch 0 has a step above 0, otherwise from 1. If all steps are 0, as in ``net-9_000``, the
    epochs tell the order.
    """
    steps = [step for _, step in sorted(keys)]
    if all(before < after for before, after in pairwise(steps)):
        return [step for _, step in keys]
    if not any(steps):
        return [epoch for epoch, _ in keys]
    first = 0 if any(epoch == 0 and step > 0 for epoch, step in keys) else 1
    return [max(epoch - first, 0) * max(steps) + step for epoch, step in keys]


def _named(pattern: re.Pattern[str], names: Sequence[str]) -> list[int] | None:
    """Return the whole number that ``pattern`` finds in each name; None unless there is exactly one in each."""
    matches = [[*pattern.finditer(name)] for name in names]
    values = [_value(each[0]) for each in matches if len(each) == 1]
    return _whole(values) if len(values) == len(names) else None


def _only_varying(names: Sequence[str]) -> list[int] | None:
    """Return the one number that varies among names that are otherwise equal, or that are different but have only one.

    Raises:
        ConfigError: several numbers vary.
    """
    numbers = [[_value(match) for match in _NUMBER.finditer(name)] for name in names]
    if len({_NUMBER.sub("#", name) for name in names}) > 1:
        return _whole([values[0] for values in numbers]) if all(len(values) == 1 for values in numbers) else None
    columns = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    if len(columns) > 1:
        raise _doubt(f"{len(columns)} numbers vary in the names", names)
    return _whole(columns[0]) if columns else None


def _value(match: re.Match[str]) -> Decimal:
    unit = match["unit"]
    return Decimal(match["digits"].replace(",", "")) * 10 ** int(match["exponent"] or 0) * _UNITS[unit and unit.lower()]


def _whole(values: Sequence[Decimal]) -> list[int] | None:
    return [int(value) for value in values] if all(value == int(value) for value in values) else None


def _doubt(why: str, names: Sequence[str]) -> ConfigError:
    few = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return ConfigError(
        f"order is 'step', but {why} ({few}); use order='name' or order='mtime', or rename them, so that one number "
        "varies or is called step or epoch"
    )
