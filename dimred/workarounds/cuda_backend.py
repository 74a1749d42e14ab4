"""MindSpore registers its backend for NVIDIA GPUs only where an ``nvcc`` reports the CUDA version.

It also registers a backend that was loaded before MindSpore is imported, without an ``nvcc``, an installed CUDA or
``LD_LIBRARY_PATH``: this module loads each library, before those that need it, from NVIDIA's wheels on the package
index. MindSpore then warns about a CUDA that it can't find, and carries on with the libraries that are there. Seen in
MindSpore 2.10; its notes have not named GPUs since 2.3. We know of no report. ``tests/workarounds`` fails once the
backend is registered by itself.
"""

import ctypes
import importlib.metadata
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from dimred.errors import DISTRIBUTION, ConfigError, MissingPackageError

CUDA_FOLDERS = "DIMRED_CUDA"  # environment variable with folders of CUDA 11 libraries, to replace NVIDIA's wheels
DRIVER = "libcuda.so.1"  # comes with the system's driver; the system finds it
INSTALL_CUDA = f"python -m pip install '{DISTRIBUTION}[cuda]'"
_BACKEND = "libmindspore_gpu.so.11.6"
_KERNELS = "libcuda_ops.so.11"
# Library -> its wheel; each comes after those that it needs. cuDNN finds its own parts beside itself.
_WHEELS = {
    "libcudart.so.11.0": "nvidia-cuda-runtime-cu11",
    "libnvrtc.so.11.2": "nvidia-cuda-nvrtc-cu11",
    "libcublasLt.so.11": "nvidia-cublas-cu11",
    "libcublas.so.11": "nvidia-cublas-cu11",
    "libcudnn.so.8": "nvidia-cudnn-cu11",
    "libcurand.so.10": "nvidia-curand-cu11",
    "libcusparse.so.11": "nvidia-cusparse-cu11",
    "libcusolver.so.11": "nvidia-cusolver-cu11",
    "libcufft.so.10": "nvidia-cufft-cu11",
}


def load_cuda_backend() -> None:
    """Load the CUDA libraries and MindSpore's GPU backend into this process, so that MindSpore registers it.

    Raises:
        MissingPackageError: MindSpore is not installed.
        ConfigError: MindSpore is already imported, its package has no such backend, or a library is missing.
    """
    backend = cuda_backend()
    if is_loaded(backend):
        return
    if "mindspore" in sys.modules:
        raise ConfigError(
            "MindSpore is already imported, so it is too late to load its backend for GPUs; call dimred.use_gpu() "
            "before the first import of mindspore"
        )
    libraries = cuda_libraries()
    # MindSpore raises the size limit of the driver's cache for kernels that the driver compiles, but the driver may
    # have read the limit by then.
    os.environ.setdefault("CUDA_CACHE_MAXSIZE", "4000000000")
    # cuBLAS and cuDNN then load a kernel when it is first called; MindSpore's own kernels ignore the variable.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    logging.getLogger(f"ME.mindspore.log.{os.getpid()}").addFilter(_is_no_false_alarm)
    try:
        for library in (*libraries.values(), DRIVER):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(backend))
    except OSError as error:
        raise ConfigError(f"a library for NVIDIA's GPUs can't be loaded ({error}); dimred doctor says more") from error


def cuda_backend() -> Path:
    """Return the path of MindSpore's GPU backend.

    Raises:
        MissingPackageError: MindSpore is not installed.
        ConfigError: its package has no such backend, as on any system but Linux on x86-64.
    """
    backend = _plugins() / _BACKEND
    if not backend.exists():
        raise ConfigError(
            f"MindSpore {importlib.metadata.version('mindspore')} has no backend for GPUs here ({_BACKEND} is missing "
            "from its package)",
            remedy="only the package for Linux on x86-64 has one; use --device-target CPU on this system",
        )
    return backend


def cuda_kernels() -> Path:
    """Return the path of the library with MindSpore's GPU kernels; see ``cuda_backend``."""
    return cuda_backend().parent / "gpu" / _KERNELS


def cuda_libraries() -> dict[str, Path]:
    """Return the paths of the CUDA libraries by name, in an order in which they can be loaded.

    They are looked for in the folders that ``DIMRED_CUDA`` names, or without that variable in NVIDIA's wheels.

    Raises:
        ConfigError: one is missing.
    """
    folders = list(_cuda_folders(os.environ))
    found = {name: [folder / name for folder in folders if (folder / name).is_file()] for name in _WHEELS}
    missing = [name for name, paths in found.items() if not paths]
    if missing and CUDA_FOLDERS in os.environ:
        raise ConfigError(
            f"{CUDA_FOLDERS} is {os.environ[CUDA_FOLDERS]!r}, where {', '.join(missing)} can't be found",
            remedy="name folders with all of CUDA 11's libraries, or unset it",
        )
    if missing:
        wheels = dict.fromkeys(_WHEELS[name] for name in missing)
        lacking = "are not installed" if len(missing) == len(_WHEELS) else f"are not complete ({', '.join(wheels)})"
        raise ConfigError(f"CUDA 11's libraries {lacking}", remedy=f"install them, 2.9 GB, with {INSTALL_CUDA}")
    return {name: paths[0] for name, paths in found.items()}


def library_version(name: str) -> str:
    """Return a CUDA library's version: its wheel's version, or the one in its file name."""
    if CUDA_FOLDERS in os.environ:
        return name.partition(".so.")[2]
    return importlib.metadata.version(_WHEELS[name])


def is_loaded(library: Path) -> bool:
    """Return whether this process has loaded the library at this path."""
    maps = Path("/proc/self/maps")
    return maps.exists() and str(library.resolve()) in maps.read_text(errors="surrogateescape")


def _plugins() -> Path:
    mindspore = find_spec("mindspore")
    if mindspore is None or mindspore.origin is None:
        raise MissingPackageError("mindspore")
    return Path(mindspore.origin).parent / "lib" / "plugin"


def _cuda_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    if CUDA_FOLDERS in environment:
        yield from map(Path, environment[CUDA_FOLDERS].split(os.pathsep))
        return
    nvidia = find_spec("nvidia")  # the namespace of NVIDIA's wheels
    for folder in (nvidia.submodule_search_locations or ()) if nvidia is not None else ():
        yield from sorted(Path(folder).glob("*/lib"))


def _is_no_false_alarm(record: logging.LogRecord) -> bool:
    """Return False for a warning about a CUDA that MindSpore looks for with ``ldd``, if the libraries are there."""
    return not record.pathname.endswith("_check_version.py")
