"""What a run was made with, beside its results."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dimred.files.atomic import atomic_write
from dimred.files.run_names import VERSIONS

_PACKAGES = ("dimred", "mindspore", "numpy", "scikit-learn", "h5py")


def write_versions(folder: Path) -> None:
    """Write ``versions.json``: packages, Python, operating system, processors."""
    atomic_write(folder / VERSIONS, json.dumps(versions(), indent=2) + "\n")


def versions() -> dict[str, str]:
    """Name -> version."""
    found = {name: _version(name) for name in _PACKAGES}
    return found | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
