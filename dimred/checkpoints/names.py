"""Read the names of a series' files, NAME-EPOCH_STEP, as MindSpore's ``ModelCheckpoint`` gives them."""

import re
from collections.abc import Sequence
from itertools import pairwise

from dimred.errors import SeriesError

_NAME = re.compile(r"(?P<network>.+)-(?P<epoch>\d{1,18})_(?P<step>\d{1,18})")


def network_of(name: str) -> str | None:
    """Return NAME of a file's name without its ending, NAME-EPOCH_STEP; None for another name."""
    match = _NAME.fullmatch(name)
    return match["network"] if match else None


def epochs_and_steps(names: Sequence[str]) -> list[tuple[int, int]]:
    """Read (epoch, step since the start of training) from names NAME-EPOCH_STEP, without their endings.

    MindSpore counts steps within an epoch, others from the start of training. If the steps don't increase from file to
    file, they are taken as steps within an epoch, and the largest as an epoch's length.

    Raises:
        SeriesError: they are of several networks, or don't tell which is the older of two.
    """
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    networks = sorted({match["network"] for match in matches})
    if len(networks) > 1:
        few = ", ".join(map(repr, networks[:4]))
        raise SeriesError(f"There are checkpoints of several runs: {few}. Move each run to a folder of its own.")
    keys = [(int(match["epoch"]), int(match["step"])) for match in matches]
    steps = [step for _, step in sorted(keys)]
    if any(before >= after for before, after in pairwise(steps)):
        length, first = max(*steps, 1), min(1, *(epoch for epoch, _ in keys))
        keys = [(epoch, (epoch - first) * length + step) for epoch, step in keys]
    for (before, name), (after, other) in pairwise(sorted(zip(keys, names, strict=True))):
        if before[1] >= after[1]:
            raise SeriesError(f"The names {name!r} and {other!r} don't tell which is the older; rename one of them.")
    return keys
