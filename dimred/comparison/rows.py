"""A comparison's rows, each kept in a file."""

from pathlib import Path
from typing import Any

from dimred.errors import ConfigError
from dimred.io.checksums import read_checksummed
from dimred.io.file_format import COMPARED

Row = dict[str, Any]


def read_row(file: Path) -> Row:
    """Read the row for one method, one seed, and one epoch at which stage 1 is treated as ended.

    Raises:
        ConfigError: the file can't be read, is damaged, or has a version that this dimred does not read.
    """
    try:
        return read_checksummed(file, COMPARED)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} can't be used ({error}); remove it, and dimred compare makes it again") from None
