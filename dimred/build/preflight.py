"""Checks before the first step: every problem is found at once, and said in one list."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dimred.errors import ConfigError, DimredError

__all__ = ["Problems", "bytes_below", "check_memory", "check_space"]

_MEMORY = Path("/proc/meminfo")


class Problems:
    """Collects what is wrong, and refuses it together."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """An error of ours inside the block is noted; the program goes on after the block."""
        try:
            yield
        except DimredError as error:
            self._found.append(str(error))

    def refuse(self) -> None:
        """Raises ConfigError with everything that was noted; nothing happens where nothing was."""
        if len(self._found) == 1:
            raise ConfigError(self._found[0])
        if self._found:
            lines = "".join(f"\n  {number}. {text}" for number, text in enumerate(self._found, start=1))
            raise ConfigError(f"{len(self._found)} problems:{lines}")


def check_space(folder: Path, needed: int, what: str) -> None:
    """Check the free space of the disk that ``folder`` lies on, or will lie on.

    Args:
        folder: need not exist yet.
        needed: bytes.
        what: they are for.

    Raises:
        ConfigError: there is less.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ConfigError(
            f"--out is {str(folder)!r}, on a disk with {free / 1e6:,.0f} MB free; {what} takes up to "
            f"{needed / 1e6:,.0f} MB. Free some, keep fewer checkpoints, or name a folder on another disk"
        )


def bytes_below(folder: Path) -> int:
    """What the files below a folder take; 0 where there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_memory(needed: int, what: str, source: Path = _MEMORY) -> None:
    """Check the memory that is available; where the system does not say, nothing is checked.

    Args:
        needed: bytes.
        what: they are for.
        source: ``/proc/meminfo``.

    Raises:
        ConfigError: there is less.
    """
    try:
        lines = source.read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return
    if available < needed:
        raise ConfigError(
            f"{what} needs {needed / 1e6:,.0f} MB of memory, {available / 1e6:,.0f} MB are available; free some, or "
            "lower n_components"
        )
