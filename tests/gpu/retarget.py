"""Replace the machine code in MindSpore's CUDA kernels by code for one kind of GPU, compiled from the PTX beside it.

    python -m tests.gpu.retarget libcuda_ops.so.11 OUT --arch 90 --ptxas ptxas [--processes 2]

The library of MindSpore 2.10 has 407 modules, each with code for compute capabilities up to 8.0 and PTX for 8.6. It is
linked with a CUDA runtime of 11.6, which loads every module when the device is first used. On a newer GPU the driver
would compile all of them then, in one thread. It needs ``ptxas`` of ``nvidia-cuda-nvcc-cu11``, which knows GPUs up to
9.0, and ``lz4``.
"""

import argparse
import mmap
import shutil
import struct
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dimred.launch.nvidia import MACHINE_CODE, PTX, Container, containers

_COMPRESSED = 0x2000
_HEADER = 64  # bytes of the header of machine code


def main() -> None:
    """Compile each module, and write the library with the new code in the place of the old one."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("library", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--arch", type=int, default=90)
    options.add_argument("--ptxas", default="ptxas")
    options.add_argument("--processes", type=int, default=2)
    given = options.parse_args()
    shutil.copy(given.library, given.out)
    start, total = time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as folder, given.out.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        found = list(containers(data))
        texts = [ptx_of(data, container, given.arch) for container in found]
        print(f"{len(found)} modules, {sum(map(len, texts)) / 1e6:.0f} MB of PTX", flush=True)

        def compiled(number: int) -> bytes:
            return compile_ptx(texts[number], Path(folder) / str(number), given.ptxas, given.arch)

        with ThreadPoolExecutor(given.processes) as pool:
            for number, code in enumerate(pool.map(compiled, range(len(found))), start=1):
                total += put(data, found[number - 1], code, given.arch)
                if number % 40 == 0:
                    print(f"{number} of {len(found)} after {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{total / 1e6:.0f} MB of code for {given.arch} in {time.perf_counter() - start:.0f} s")


def ptx_of(data: mmap.mmap, container: Container, arch: int) -> bytes:
    """Return the newest PTX of a module that is not newer than the GPU."""
    fitting = [entry for entry in container.entries if entry.kind == PTX and entry.arch <= arch]
    entry = max(fitting, key=lambda entry: entry.arch)
    (flags,) = struct.unpack_from("<Q", data, entry.place + 40)
    code = data[entry.place + entry.header : entry.place + entry.header + entry.length]
    if flags & _COMPRESSED:
        (packed,) = struct.unpack_from("<I", data, entry.place + 16)
        (whole,) = struct.unpack_from("<Q", data, entry.place + 56)
        import lz4.block  # not needed for another kind of library, and not installed with dimred

        code = lz4.block.decompress(code[:packed], uncompressed_size=whole)
    return code.rstrip(b"\0")


def compile_ptx(text: bytes, path: Path, ptxas: str, arch: int) -> bytes:
    """Compile PTX by ``ptxas``, in files that begin with ``path``, and return the machine code."""
    source, target = path.with_suffix(".ptx"), path.with_suffix(".cubin")
    source.write_bytes(text)
    command = [ptxas, f"-arch=sm_{arch}", "-O3", str(source), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True)
    source.unlink()
    code = target.read_bytes()
    target.unlink()
    return code


def put(data: mmap.mmap | bytearray, container: Container, code: bytes, arch: int) -> int:
    """Make machine code the only entry of a container, and return its length; SystemExit if there is no room."""
    code += bytes(-len(code) % 8)
    first = next(entry for entry in container.entries if entry.kind == MACHINE_CODE and entry.header == _HEADER)
    if _HEADER + len(code) > container.size:
        raise SystemExit(f"{len(code)} bytes of code for {container.size - _HEADER} bytes at {container.place}")
    header = bytearray(data[first.place : first.place + _HEADER])
    struct.pack_into("<Q", header, 8, len(code))
    struct.pack_into("<I", header, 16, 0)  # bytes of packed code
    struct.pack_into("<I", header, 28, arch)
    (flags,) = struct.unpack_from("<Q", header, 40)
    struct.pack_into("<Q", header, 40, flags & ~_COMPRESSED)
    struct.pack_into("<Q", header, 56, 0)  # bytes of the code that was packed
    data[container.place + 8 : container.place + 16] = struct.pack("<Q", _HEADER + len(code))
    begin = container.place + 16
    rest = bytes(container.size - _HEADER - len(code))
    data[begin : begin + container.size] = bytes(header) + code + rest
    return len(code)


def blank_others(data: mmap.mmap | bytearray, arch: int) -> int:
    """Fill with zeros what a library's containers hold for other GPUs, and return how many bytes these are.

    A container keeps its PTX if it has no machine code for the GPU. The headers stay, so that the driver finds its way.
    """
    n_blanked = 0
    for container in containers(data):
        has_code = any(entry.kind == MACHINE_CODE and entry.arch == arch for entry in container.entries)
        for entry in container.entries:
            is_other = entry.arch != arch if entry.kind == MACHINE_CODE else entry.kind == PTX and has_code
            if is_other:
                begin = entry.place + entry.header
                data[begin : begin + entry.length] = bytes(entry.length)
                n_blanked += entry.length
    return n_blanked


if __name__ == "__main__":
    main()
