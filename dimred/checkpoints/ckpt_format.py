"""MindSpore's ``.ckpt`` format: protobuf records, each with a name, dimensions, a type and the raw bytes.

``message Checkpoint { repeated Value value = 1; }``, ``Value { string tag = 1; TensorProto tensor = 2; }``,
``TensorProto { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }``
(source: mindspore/train/checkpoint_pb2). Reading finds where the bytes are, without loading them.
"""

import os
import zlib
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dimred.checkpoints.stored_tensor import (
    BFLOAT16,
    MOST_DIMENSIONS,
    NUMBERS,
    TEXT,
    StoredTensor,
    read_exactly,
    tensor_of,
    unknown_type,
)
from dimred.errors import CheckpointError, shown

_KINDS = {"f": "Float", "i": "Int", "u": "UInt"}
_TYPES: dict[str, np.dtype | str] = {"Bool": np.dtype("?"), "BFloat16": BFLOAT16, "str": TEXT}
_TYPES |= {f"{_KINDS[dtype.kind]}{8 * dtype.itemsize}": dtype for dtype in NUMBERS}  # Float32, Int64, UInt8, ...
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
# Tags of protobuf: field number << 3 | wire type (2: bytes with a length, 0: varint).
_VALUE = 0x0A
_TAG = 0x0A
_TENSOR = 0x12
_DIM = 0x08
_PACKED_DIMS = 0x0A
_TYPE = 0x12
_CONTENT = 0x1A
# save_checkpoint(crc_check=True) ends the file with a mark and ten bytes with the CRC-32 of everything before.
_CRC_MARK = b"crc_num"
_CRC_BYTES = 17
LONGEST_NAME = 65_536
_MOST_RECORDS = 1 << 20
_CRC_PIECE = 1 << 20
PIECE_BYTES = 512 << 20  # MindSpore splits longer tensors too: a protobuf message may not reach 2 GiB


class _Cursor:
    """A reader of numbers and short texts, at a position in a file."""

    def __init__(self, file: BinaryIO, path: os.PathLike[str]) -> None:
        self._descriptor = file.fileno()
        self.path = path
        self._start = 0
        self._window = b""
        self.size = os.fstat(self._descriptor).st_size
        self.position = 0

    def take(self, count: int) -> bytes:
        start = self.position - self._start
        if start < 0 or start + count > len(self._window):
            self._window = os.pread(self._descriptor, max(count, 4096), self.position)
            self._start = self.position
            start = 0
        if len(self._window) - start < count:
            raise self.error("the file ends in the middle of a record")
        self.position += count
        return self._window[start : start + count]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise self.error("a number is longer than 64 bits")

    def end(self, outer: int) -> int:
        """Read a length, and return the end of the bytes it announces; CheckpointError if that is beyond ``outer``."""
        length = self.varint()
        if self.position + length > outer:
            n_missing = self.position + length - outer
            raise self.error(f"a record claims {length} bytes, {n_missing} more than there are")
        return self.position + length

    def text(self, outer: int) -> str:
        length = self.end(outer) - self.position
        if length > LONGEST_NAME:
            raise self.error(f"a name claims {length} bytes")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.error("a name is not UTF-8") from None

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is not a whole MindSpore checkpoint: {problem} (byte {self.position} of {self.size}). It may "
            "be truncated, damaged, encrypted, or not a checkpoint; save it again."
        )


def read_ckpt_index(file: BinaryIO, path: Path) -> dict[str, StoredTensor]:
    """Locate each tensor of a ``.ckpt`` file: name -> place, in the file's order.

    Raises:
        CheckpointError: the file is damaged; the message names the byte.
    """
    cursor = _Cursor(file, path)
    index: dict[str, StoredTensor] = {}
    for name, records in groupby(_records(cursor), key=lambda record: record.name):  # a long tensor has several
        if name in index:
            raise cursor.error(f"the parameter {shown(name)} appears twice")
        pieces = list(records)
        places = tuple(piece.place for piece in pieces)
        index[name] = tensor_of(path, name, pieces[0].shape, _TYPES[pieces[0].type_name], places)
    return index


class _Record(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type_name: str
    place: tuple[int, int]


def _records(cursor: _Cursor) -> Iterator[_Record]:
    for _ in range(_MOST_RECORDS):
        start = cursor.position
        if start == cursor.size:
            return
        if cursor.size - start == _CRC_BYTES and cursor.take(len(_CRC_MARK)) == _CRC_MARK:
            return
        cursor.position = start
        if cursor.take(1)[0] != _VALUE:
            raise cursor.error("no record starts here")
        yield _record(cursor, cursor.end(cursor.size))
    raise cursor.error(f"it has more than {_MOST_RECORDS:,} records")


def _record(cursor: _Cursor, end: int) -> _Record:
    if cursor.take(1)[0] != _TAG:
        raise cursor.error("a record does not start with its name")
    name = cursor.text(end)
    if cursor.position >= end or cursor.take(1)[0] != _TENSOR:
        raise cursor.error(f"the record {shown(name)} holds no tensor")
    if cursor.end(end) != end:
        raise cursor.error(f"the lengths in the record {shown(name)} contradict each other")
    shape: list[int] = []
    type_name = ""
    place = None
    while cursor.position < end:
        field = cursor.take(1)[0]
        if field in (_DIM, _PACKED_DIMS):
            last = cursor.end(end) if field == _PACKED_DIMS else cursor.position + 1
            while cursor.position < last:
                shape.append(cursor.varint())
                if len(shape) > MOST_DIMENSIONS:
                    raise cursor.error(f"the parameter {shown(name)} claims more than {MOST_DIMENSIONS} dimensions")
        elif field == _TYPE:
            type_name = cursor.text(end)
        elif field == _CONTENT:
            last = cursor.end(end)
            place = (cursor.position, last - cursor.position)
            cursor.position = last
        else:
            raise cursor.error(f"the record {shown(name)} has an unknown field")
    if type_name not in _TYPES:
        raise unknown_type(cursor.path, name, type_name)
    if place is None or cursor.position != end:
        raise cursor.error(f"the record {shown(name)} is incomplete")
    return _Record(name, tuple(shape), type_name, place)


def check_ckpt_crc(file: BinaryIO, path: os.PathLike[str]) -> None:
    """Compare a ``.ckpt`` file with the checksum at its end, if it has one; CheckpointError if they differ."""
    crc_in_file, crc = _checksums(file, path)
    if crc_in_file != crc:
        raise CheckpointError(
            f"{path} is damaged: its checksum does not match its content. Restore it, or save it again."
        )


def renew_ckpt_crc(file: BinaryIO, path: os.PathLike[str]) -> None:
    """Update the checksum at the end of a ``.ckpt`` file, if it has one, after a change of the content.

    The file is open for reading and writing, with nothing left in its buffer; CheckpointError if it can't be read.
    """
    _, crc = _checksums(file, path)
    if crc is not None:
        os.pwrite(file.fileno(), crc, os.fstat(file.fileno()).st_size - len(crc))


def _checksums(file: BinaryIO, path: os.PathLike[str]) -> tuple[bytes | None, bytes | None]:
    """Return the stored checksum and the one computed from the content; (None, None) if none is stored."""
    size = os.fstat(file.fileno()).st_size
    end = os.pread(file.fileno(), _CRC_BYTES, max(size - _CRC_BYTES, 0))
    if len(end) < _CRC_BYTES or not end.startswith(_CRC_MARK):
        return None, None
    crc = 0
    body = size - _CRC_BYTES
    for position in range(0, body, _CRC_PIECE):
        piece = np.empty(min(_CRC_PIECE, body - position), np.uint8)
        read_exactly(file.fileno(), piece, position, path)
        crc = zlib.crc32(piece.data, crc)
    return end[len(_CRC_MARK) :], crc.to_bytes(_CRC_BYTES - len(_CRC_MARK), "big")


def write_ckpt(file: BinaryIO, values: Mapping[str, Any]) -> None:
    """Write ``values`` (name -> little-endian array, or text) in the ``.ckpt`` format, with its checksum."""
    crc = 0

    def write(data: Any) -> None:
        nonlocal crc
        crc = zlib.crc32(data, crc)
        file.write(data)

    for name, value in values.items():
        if isinstance(value, str):
            array = np.array(value or "\0", dtype=f"<U{max(len(value), 1)}")
            type_name = "str"
            dims = (0,)
        else:
            array = value
            type_name = _NAMES[value.dtype]
            dims = value.shape
        content = array.reshape(-1).view(np.uint8).data
        for start in range(0, max(len(content), 1), PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            head = b"".join(b"\x08" + _varint(length) for length in dims)
            head += b"\x12" + _sized(type_name.encode()) + b"\x1a" + _varint(len(piece))
            tag = b"\x0a" + _sized(name.encode()) + b"\x12" + _varint(len(head) + len(piece))
            write(b"\x0a" + _varint(len(tag) + len(head) + len(piece)) + tag + head)
            write(piece)
    file.write(_CRC_MARK + crc.to_bytes(_CRC_BYTES - len(_CRC_MARK), "big"))


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)
