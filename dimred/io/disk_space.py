"""Find out how much room a disk has, if its file system says so."""

import shutil
from pathlib import Path


def free_bytes(path: Path) -> int | None:
    """Return how many bytes are free on the disk of a file or folder that exists; None if that is not known.

    Some file systems in user space, such as gcsfuse and s3fs, answer with zeros or not at all.
    """
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError:
        return None
    return free if total else None
