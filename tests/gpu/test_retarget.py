"""A library's containers of GPU code, made here byte by byte as NVIDIA's compiler writes them."""

import struct

import pytest

from dimred.launch.nvidia import MACHINE_CODE, PTX, containers
from tests.gpu.retarget import blank_others, put

COMPRESSED = 0x2000


def entry(kind: int, arch: int, code: bytes, *, is_compressed: bool = False) -> bytes:
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, kind, 0x101, 64, len(code))
    struct.pack_into("<I", header, 28, arch)
    struct.pack_into("<Q", header, 40, 0x11)
    if is_compressed:
        struct.pack_into("<I", header, 16, len(code))
        struct.pack_into("<Q", header, 40, 0x11 | COMPRESSED)
        struct.pack_into("<Q", header, 56, 4 * len(code))
    return bytes(header) + code


def library(*entries: bytes) -> bytearray:
    """Return a container among other bytes."""
    content = b"".join(entries)
    return bytearray(b"before  " + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content + b"after")


@pytest.mark.parametrize("is_compressed", [False, True])
def test_new_code_is_the_only_entry_and_is_not_taken_for_compressed(is_compressed: bool) -> None:
    """An H200 found no code in the one module of MindSpore's whose first code was compressed."""
    data = library(entry(MACHINE_CODE, 60, b"o" * 64, is_compressed=is_compressed), entry(PTX, 86, b"p" * 200))
    length = len(data)
    put(data, next(containers(data)), b"new code", 90)
    (found,) = next(containers(data)).entries
    assert (found.kind, found.arch, found.length) == (MACHINE_CODE, 90, 8)
    assert data[found.place + found.header :].startswith(b"new code" + bytes(64))
    assert struct.unpack_from("<Q", data, found.place + 40) == (0x11,)
    assert (len(data), data[:8], data[-5:]) == (length, b"before  ", b"after")


def test_code_that_is_too_long_is_refused() -> None:
    data = library(entry(MACHINE_CODE, 60, b"o" * 64))
    with pytest.raises(SystemExit, match="72 bytes of code for 64 bytes"):
        put(data, next(containers(data)), b"n" * 72, 90)


def test_code_for_other_gpus_is_blanked() -> None:
    data = library(entry(MACHINE_CODE, 80, b"o" * 64), entry(MACHINE_CODE, 90, b"n" * 64), entry(PTX, 90, b"p" * 64))
    assert blank_others(data, 90) == 128
    codes = [data[one.place + one.header :][: one.length] for one in next(containers(data)).entries]
    assert codes == [bytes(64), b"n" * 64, bytes(64)]


def test_a_module_without_code_for_the_gpu_keeps_its_ptx() -> None:
    data = library(entry(MACHINE_CODE, 80, b"o" * 64), entry(PTX, 86, b"p" * 64))
    assert blank_others(data, 90) == 64
    assert bytes(data).count(b"p" * 64) == 1
