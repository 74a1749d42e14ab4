"""A run's folder: its lock, its permitted content, and the software versions that the run uses."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dimred import __version__
from dimred.errors import ConfigError
from dimred.io.atomic import FolderLock, atomic_write, remove_leftovers, writable
from dimred.run_files.run_names import BASIS_METADATA, CONFIG, VERSIONS, results_in

_BEGINNINGS = (CONFIG, BASIS_METADATA)  # a run's first files; the basis may be fitted before the rest begins


@contextmanager
def run_folder(out: Path) -> Iterator[Path]:
    """Make a run's folder, hold its lock inside the block, and yield its path.

    If the block fails before there are results, the lock is removed, and the folder too if it is empty.

    Raises:
        ConfigError: the folder can't be made.
        RunError: another process is using it.
    """
    with ExitStack() as stack:
        with writable("--out", out):
            lock = stack.enter_context(FolderLock(out, "--out"))
        try:
            remove_leftovers(out, is_only_writer=True)
            yield out
        except BaseException:
            if out.is_dir() and not results_in(out):
                lock.remove()
            raise


def check_run_folder(out: Path, *, resume: bool) -> None:
    """Raise ConfigError if a run may not use ``out`` because of its content.

    With ``resume``, it may hold the earlier part of a run.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"--out is {str(out)!r}, which is not a folder; name another one")
    if results_in(out):
        _check_results(out, resume=resume)


def _check_results(out: Path, *, resume: bool) -> None:
    if not resume:
        raise ConfigError(
            f"--out is {str(out)!r}, which holds earlier results; continue them with --resume, name another "
            "folder, or move them away"
        )
    if not any((out / name).exists() for name in _BEGINNINGS):
        raise ConfigError(f"--out is {str(out)!r}, which holds something other than a run; name another folder")


_PACKAGES = ("mindspore", "numpy", "scikit-learn", "h5py")


def write_versions(folder: Path) -> None:
    """Write ``versions.json``: the package, Python and operating system versions, and the number of processors."""
    versions = {
        "dimred": __version__,
        **{name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }
    atomic_write(folder / VERSIONS, json.dumps(versions, indent=2) + "\n")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
