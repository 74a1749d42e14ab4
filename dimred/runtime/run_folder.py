"""The folder a run writes into. Earlier results are never overwritten."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dimred.errors import ConfigError


@contextmanager
def run_folder(out: Path) -> Iterator[Path]:
    """Make the folder of a new run; a run that fails before it wrote anything leaves none behind.

    Raises:
        ConfigError: it holds something already, or can't be made.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out is {str(out)!r}, which holds earlier results; name another folder, or move them away")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror
        raise ConfigError(f"--out is {str(out)!r}, which can't be made ({why}); name another folder") from error
    try:
        yield out
    except BaseException:
        if not any(out.iterdir()):
            out.rmdir()
        raise
