"""JSON files with their format, its version and a checksum; the digest of parts of a large file."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dimred.io.atomic import atomic_write
from dimred.io.file_format import FileFormat
from dimred.io.regular_file import open_regular

_KEY = "checksum"
_BLANK = "0" * 64
_LARGEST = 64 << 20
_SAMPLES = 1024
_SAMPLE_BYTES = 1 << 14


def write_checksummed(path: str | os.PathLike[str], file_format: FileFormat, content: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all: its format and version first, a checksum as its last key.

    The checksum is the SHA-256 of the text with 64 zeros in the checksum's place.

    Args:
        path: the file.
        file_format: its format.
        content: the rest, as plain JSON values.

    Raises:
        ValueError: a number is not finite.
        OSError: the file can't be written.
    """
    text = json.dumps({**file_format.marked(content), _KEY: _BLANK}, allow_nan=False, indent=1) + "\n"
    head, _, tail = text.rpartition(_BLANK)
    atomic_write(path, head + hashlib.sha256(text.encode()).hexdigest() + tail)


def read_checksummed(path: str | os.PathLike[str], file_format: FileFormat) -> dict[str, Any]:
    """Read the content of a file that ``write_checksummed`` wrote, without the keys that it added.

    Raises:
        ValueError: the file is not JSON, has no checksum, was changed, is too large, or is of another format, or of a
            version that this dimred does not read.
        OSError: the file can't be read.
    """
    with open_regular(path) as file:
        raw = file.read(_LARGEST + 1)
    if len(raw) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST:,} bytes")
    try:
        content = json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    checksum = content.pop(_KEY, None) if isinstance(content, dict) else None
    if not isinstance(checksum, str) or len(checksum) != len(_BLANK):
        raise ValueError("it has no checksum")
    head, _, tail = raw.rpartition(checksum.encode("utf-8", "surrogatepass"))
    if hashlib.sha256(head + _BLANK.encode() + tail).hexdigest() != checksum:
        raise ValueError("it was changed after it was written: its checksum does not match")
    return file_format.content_of(content)


def sample_digest(path: Path) -> str:
    """Compute the SHA-256, in hexadecimal, of a file's size and of up to 1,024 evenly spread blocks of 16 KiB.

    Two checkpoints, or two bases, differ nearly everywhere, so this tells them apart without reading terabytes again.

    Raises:
        OSError: the file can't be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(size.to_bytes(8, "little"))
        whole = size <= _SAMPLES * _SAMPLE_BYTES
        for number in range(-(-size // _SAMPLE_BYTES) if whole else _SAMPLES):
            start = number * _SAMPLE_BYTES if whole else number * (size - _SAMPLE_BYTES) // (_SAMPLES - 1)
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, start))
    return digest.hexdigest()
