"""JSON files with a checksum of their own, which reveals any changed byte."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dimred.io.atomic import atomic_write

_KEY = "checksum"
_BLANK = "0" * 64
_LARGEST = 64 << 20


def write_checksummed(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a JSON file with a checksum as its last key, whole or not at all.

    The checksum is the SHA-256 of the text with 64 zeros in the checksum's place.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps({**content, _KEY: _BLANK}, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    head, _, tail = text.rpartition(_BLANK)
    atomic_write(path, head + hashlib.sha256(text.encode()).hexdigest() + tail)


def read_checksummed(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the content of a file that ``write_checksummed`` wrote.

    Raises:
        ValueError: the file is not JSON, has no checksum, was changed, or is too large.
        OSError: the file can't be read.
    """
    with Path(path).open("rb") as file:
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
    return dict(content)
