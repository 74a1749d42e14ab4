"""The folder that a run writes into. Earlier results are never overwritten; only the run itself goes on in it."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dimred.errors import ConfigError
from dimred.io.atomic import atomic_write, remove_leftovers
from dimred.io.lock import FolderLock
from dimred.io.run_names import BASIS_METADATA, CONFIG, PHASES, VERSIONS, results_in

# What a run writes first; the basis may be fitted before the rest begins.
_BEGINNINGS = (CONFIG, PHASES, BASIS_METADATA)


@contextmanager
def run_folder(out: Path, *, resume: bool = False) -> Iterator[Path]:
    """Make the folder of a run and hold its lock; remove it again if the run fails before it writes anything.

    Args:
        out: the folder.
        resume: a run that was begun there may be gone on with.

    Raises:
        ConfigError: it holds something already, or can't be made.
        RunError: another process is at work there.
    """
    check_run_folder(out, resume=resume)
    if out.is_dir():
        remove_leftovers(out)
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(FolderLock(out, f"--out is {str(out)!r}"))
        except OSError as error:
            why = error.strerror
            raise ConfigError(f"--out is {str(out)!r}, which can't be made ({why}); name another folder") from error
        try:
            yield out
        except BaseException:
            if out.is_dir() and not results_in(out):
                lock.remove()
            raise


def check_run_folder(out: Path, *, resume: bool) -> None:
    """Raise ConfigError if ``run_folder`` would refuse ``out`` because of what is in it."""
    if out.exists() and (not out.is_dir() or (results_in(out) and not resume)):
        raise ConfigError(
            f"--out is {str(out)!r}, which holds earlier results; go on with them by --resume, name another folder, or "
            "move them away"
        )
    if out.exists() and results_in(out) and not any((out / name).exists() for name in _BEGINNINGS):
        raise ConfigError(f"--out is {str(out)!r}, which holds something else than a run; name another folder")


_PACKAGES = ("dimred", "mindspore", "numpy", "scikit-learn", "h5py")


def write_versions(folder: Path) -> None:
    """Write ``versions.json``: packages, Python, operating system, processors."""
    found = {name: _version(name) for name in _PACKAGES} | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }
    atomic_write(folder / VERSIONS, json.dumps(found, indent=2) + "\n")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
