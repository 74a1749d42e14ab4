"""Order checkpoints by the numbers in the names of their files or folders, where these leave no doubt."""

import re
from collections import Counter
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
# A number behind these counts the slices of one network, or its layers.
_SLICE = re.compile(r"(?<![a-z])(?:rank|mp|tp|pp|shard|part|slice|layer|consolidated)[=_.-]?(?=\d)", re.IGNORECASE)
_GOES_ON = re.compile(rf"{_STEP.pattern}_\d{{3}}(?!\d)", re.IGNORECASE)  # 12_000, or step 12 and another number


def epochs_and_steps(files: Mapping[Path, Sequence[Path]], order: str = "step") -> list[tuple[int, int]]:
    """Return the (epoch, step) of each checkpoint, in the order given; an epoch that isn't known is 0.

    Names are read if they differ in one number and nothing else, or if numbers are called ``step``, ``epoch`` or
    ``checkpoint``, as in ``epoch=3-step=100``, or if they end like MindSpore's, as in ``resnet-3_625``.

    Args:
        files: path of each checkpoint, a file or a folder -> the files of its weights.
        order: ``step``, from the names; ``name``, sorted with 9 before 10, or ``mtime``: the steps are then 1, 2, 3 and
            so on.

    Raises:
        ConfigError: ``order`` is unknown, or leaves in doubt which checkpoint is older.
        SeriesError: by their names, the checkpoints are of several runs, or two have the same epoch and step.
        OSError: the time of a file can't be read.
    """
    check_order(order)
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
                    "order='name'"
                )
    steps = {path: step for step, path in enumerate(paths, start=1)}
    return [(0, steps[path]) for path in files]


def check_order(order: str) -> None:
    """Check that ``order`` is known; ConfigError if it is not."""
    if order not in ORDERS:
        raise ConfigError(f"order is {order!r}; allowed: {', '.join(ORDERS)}")


def _natural(path: Path) -> list[tuple[str, int]]:
    """Return a key that sorts names with their numbers as numbers."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", str(path))]


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
    keys = None
    if epochs and steps:
        keys = list(zip(epochs, steps, strict=True))
    elif epochs:
        keys = [(epoch, epoch) for epoch in epochs]
    elif numbers := steps or checkpoints:
        keys = [(0, number) for number in numbers]
    if keys is not None:
        found = _in_order(keys, paths)
        _check_prefixes([_ANY_WORD.split(name, maxsplit=1)[0] for name in names], [step for _, step in found])
        return found
    if numbers := _only_varying(names):
        return _in_order([(0, number) for number in numbers], paths)
    if len(paths) == 1:
        return [(0, 1)]
    raise _doubt("the names don't tell it", names)


def _check_prefixes(prefixes: Sequence[str], steps: Sequence[int]) -> None:
    """Check that what stands before epoch and step is the same in all names, but for numbers that are no run's.

    Such are decimals, as of a loss, and whole numbers that grow with each step. SeriesError if there are others.
    """
    _check_is_one_run(_NUMBER.sub("#", prefix) for prefix in prefixes)
    in_order = [prefix for _, prefix in sorted(zip(steps, prefixes, strict=True))]
    for column in zip(*([_value(match) for match in _NUMBER.finditer(prefix)] for prefix in in_order), strict=True):
        if len(set(column)) > 1 and _whole(column) and not all(one < other for one, other in pairwise(column)):
            _check_is_one_run(prefixes)


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
    epochs tell the order. An epoch is a step longer if the steps of each begin at 0.
    """
    steps = [step for _, step in sorted(keys)]
    if all(before < after for before, after in pairwise(steps)):
        return [step for _, step in keys]
    if not any(steps):
        return [epoch for epoch, _ in keys]
    first = 0 if any(epoch == 0 and step > 0 for epoch, step in keys) else 1
    for length in (max(steps), max(steps) + 1):
        found = {(epoch, step): max(epoch - first, 0) * length + step for epoch, step in keys}
        if all(found[one] < found[other] for one, other in pairwise(sorted(found))):
            break
    return [found[key] for key in keys]


def _named(pattern: re.Pattern[str], names: Sequence[str]) -> list[int] | None:
    """Return the whole number that ``pattern`` finds in each name; None unless there is exactly one in each."""
    matches = [[*pattern.finditer(name)] for name in names]
    if any(len(each) != 1 for each in matches):
        return None
    numbers = [each[0] for each in matches]
    has_letter = any(number.string[number.end() :][:1].isalpha() for number in numbers)
    if has_letter and any(number["unit"] for number in numbers):  # 30m and 1h: m is no million
        return None
    return _whole([_value(number) for number in numbers])


def _only_varying(names: Sequence[str]) -> list[int] | None:
    """Return the one number that varies among names that are otherwise equal; None if there is none.

    Raises:
        ConfigError: the names differ in more than one number, or in the number of a part of a network.
    """
    numbers = [[*_NUMBER.finditer(name)] for name in names]
    patterns = Counter(_NUMBER.sub("#", name) for name in names)
    if len(patterns) > 1:
        usual, count = patterns.most_common(1)[0]
        if count == 1:
            return None
        odd = next(name for name in names if _NUMBER.sub("#", name) != usual)
        raise _doubt(f"{odd!r} is not named like the others", names)
    columns = [column for column in zip(*numbers, strict=True) if len({*map(_value, column)}) > 1]
    if len(columns) > 1:
        raise _doubt(f"{len(columns)} numbers vary in the names", names)
    if not columns:
        return None
    if all(_ends_in_slice(match) for match in columns[0]):
        raise _doubt("the number that varies is that of a slice or layer of one network, which is no checkpoint", names)
    return _whole([_value(match) for match in columns[0]])


def _ends_in_slice(match: re.Match[str]) -> bool:
    """Return whether the number stands behind a word that counts slices or layers."""
    return any(one.end() == match.start() for one in _SLICE.finditer(match.string))


def _value(match: re.Match[str]) -> Decimal:
    unit = match["unit"]
    return Decimal(match["digits"].replace(",", "")) * 10 ** int(match["exponent"] or 0) * _UNITS[unit and unit.lower()]


def _whole(values: Sequence[Decimal]) -> list[int] | None:
    return [int(value) for value in values] if all(value == int(value) for value in values) else None


def _doubt(why: str, names: Sequence[str]) -> ConfigError:
    few = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return ConfigError(
        f"order is 'step', but {why} ({few}); leave out what is not of this run, use order='name' or order='mtime', or "
        "rename them, so that one number varies or is called step or epoch"
    )
