"""Jane Austen's novels as a text of bytes, for the network and the windows of ``source_code.py``.

DATA is the folder ``data`` of Debian's package ``r-cran-janeaustenr``, which an installation has in ``DEBIAN``:

    apt-get download r-cran-janeaustenr && dpkg -x r-cran-janeaustenr_*.deb janeausten

Five novels train and one is the test split; the last twentieth of each of the five is ``val``. That is 3.4 MB to train
on, 39 epochs of 86 kB; later ones read the parts again from the first on.
"""

import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import DataError
from tests.studies.source_code import Windows, windows_of

DEBIAN = Path("/usr/lib/R/site-library/janeaustenr/data")
TEST = "northangerabbey"
VAL_SHARE = 1 / 20


def dataset(folder: Path, split: str, seed: int | None, epoch: int | None) -> Windows:
    """Make a split's windows as ``dimred.data.own_dataset`` asks; see ``source_code.dataset``."""
    return windows_of(text_of(folder, split), split, epoch)


@cache
def text_of(folder: Path, split: str) -> np.ndarray:
    """Return the split's novels as uint8, one after another, with a 0 behind each."""
    found = []
    for name, novel in sorted(read_novels(folder).items()):
        end = len(novel) if name == TEST else int((1 - VAL_SHARE) * len(novel))
        parts = {"test": novel} if name == TEST else {"train": novel[:end], "val": novel[end:]}
        if split in parts:
            found.append(parts[split] + b"\0")
    return np.frombuffer(b"".join(found), np.uint8)


def read_novels(folder: Path) -> dict[str, bytes]:
    """Read R's database of lazily loaded data: name -> lines of the novel.

    ``Rdata.rdx`` lists where each object stands in ``Rdata.rdb``. There it is its length, big-endian, and zlib's stream
    of R's serialisation.

    Raises:
        DataError: a file is missing or is no such database.
    """
    try:
        index = _read(zlib.decompress((folder / "Rdata.rdx").read_bytes(), zlib.MAX_WBITS | 16))
        content, novels = (folder / "Rdata.rdb").read_bytes(), {}
        for name, (offset, size) in index["variables"].items():
            novels[name] = b"\n".join(_read(zlib.decompress(content[offset + 4 : offset + size]))) + b"\n"
    except (OSError, zlib.error, struct.error, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{str(folder)!r} can't be read as R's data ({error}); give the folder data of Debian's r-cran-janeaustenr"
        ) from error
    return novels


def _read(content: bytes) -> Any:
    """Read R's binary XDR serialisation (R Internals, 1.8): lists, integers, strings; names make a list a dict."""
    if content[:2] != b"X\n":
        raise ValueError("it is not in R's binary format")
    place, symbols = 14, []  # after the versions of format, writer and reader

    def number() -> int:
        nonlocal place
        [found] = struct.unpack_from(">i", content, place)
        place += 4
        return int(found)

    def item() -> Any:
        nonlocal place
        flags = number()
        kind, has_attributes, has_tag = flags & 0xFF, flags & 0x200, flags & 0x400
        if kind == 254:  # NULL
            return None
        if kind == 255:  # a symbol from before
            return symbols[(flags >> 8) - 1]
        if kind == 1:
            symbols.append(item())
            return symbols[-1]
        if kind == 2:  # one pair of a list of attributes, and the rest
            tag = item() if has_tag else None
            found = {tag: item()}
            return found | (item() or {})
        if kind == 9:  # the bytes of a string
            n = number()
            place += max(n, 0)
            return content[place - max(n, 0) : place]
        if kind not in (10, 13, 16, 19):  # logical, integer, strings, list
            raise ValueError(f"its type {kind} is not expected here")
        n = number()
        values = [number() if kind in (10, 13) else item() for _ in range(n)]
        names = (item() or {}).get(b"names") if has_attributes else None
        return values if names is None else {name.decode(): value for name, value in zip(names, values, strict=True)}

    if struct.unpack_from(">i", content, 2) == (3,):  # it also names the encoding
        [n] = struct.unpack_from(">i", content, place)
        place += 4 + n
    return item()
