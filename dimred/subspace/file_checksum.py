"""A checksum in the first bytes of an HDF5 file, compared before the HDF5 library reads any of it.

The format leaves the first 512 bytes to its users (the "user block"); every reader of HDF5 skips them.
"""

import hashlib
import os
from pathlib import Path

__all__ = ["CHECKSUM_BYTES", "check_file_checksum", "write_file_checksum"]

CHECKSUM_BYTES = 512
_PIECE = 1 << 20


def write_file_checksum(path: Path) -> None:
    """Write the add_checksum into a file whose first ``CHECKSUM_BYTES`` are free for it."""
    add_checksum = _seal_of(path)
    with path.open("r+b") as file:
        file.write(add_checksum)


def check_file_checksum(path: Path) -> None:
    """Compare a file with its add_checksum.

    Raises:
        ValueError: the file was changed or cut after it was sealed, or never sealed.
        OSError: it can't be read.
    """
    expected = _seal_of(path)
    with path.open("rb") as file:
        if file.read(CHECKSUM_BYTES) != expected:
            raise ValueError("it is not what was written: its checksum is another")


def _seal_of(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(CHECKSUM_BYTES, os.SEEK_SET)
        while piece := file.read(_PIECE):
            digest.update(piece)
    return f"dimred seal: SHA-256 of what follows is {digest.hexdigest()}\n".encode().ljust(CHECKSUM_BYTES, b"\0")
