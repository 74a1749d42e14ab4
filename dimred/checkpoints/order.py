"""Order checkpoints by the numbers in the names of their files or folders."""

import re
from collections.abc import Sequence
from pathlib import Path

from dimred.checkpoints.folder import INDEX
from dimred.checkpoints.series import steps_since_start
from dimred.errors import ConfigError

_EPOCH_AND_STEP = re.compile(r"-(\d{1,18})_(\d{1,18})$")
_NUMBERS = (
    re.compile(r"(?:steps?|iter|iteration|checkpoint|ckpt)[=_-]?(\d{1,18})", re.IGNORECASE),
    re.compile(r"epochs?[=_-]?(\d{1,18})", re.IGNORECASE),
    re.compile(r"(?<!\d)(?<!\d\.)(\d{1,18})\D*$"),  # not the decimals of a loss
)


def steps_from_names(paths: Sequence[Path]) -> list[int]:
    """Read the step of each checkpoint from the numbers in its file's or folder's name.

    Raises:
        ConfigError: no kind of number is in all names and different in each.
    """
    names = [path.name.removesuffix(INDEX).removesuffix(path.suffix if path.is_file() else "") for path in paths]
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
