"""NVIDIA's GPUs, by the backend in MindSpore's package and CUDA 11's libraries; run on one H200 (pipelines/GPU.md)."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator

from dimred.errors import ConfigError, MissingPackageError, number_of
from dimred.launch.device import CheckResult, Device, Found, Target, refuse_wrong
from dimred.launch.nvidia import (
    VISIBLE_DEVICES,
    CudaCode,
    Driver,
    Version,
    ask_driver,
    cuda_code,
    driver_release,
    kernel_cache,
    visible_device,
)
from dimred.workarounds.cuda_backend import (
    DRIVER,
    cuda_backend,
    cuda_kernels,
    cuda_libraries,
    library_version,
    load_cuda_backend,
)

_log = logging.getLogger(__name__)

_OLDEST_CUDA = (11, 0)  # a driver for it, 450.80, runs every CUDA 11


class NvidiaGpu(Device):
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` shows to this process."""

    target: Target = "GPU"
    remedy = "call dimred.use_gpu() before the first import of mindspore"
    starts_late = True
    short_type = "tf32"
    turns_short_type_off = True
    special_keys = frozenset({"precision.jit_level", "precision.tf32", "deterministic"})

    def find(self) -> Found:
        driver = ask_driver()
        if driver is None:
            return Found(0, "no NVIDIA driver")
        problem = next((result for result in _checks(driver) if result.remedy), None)
        there = number_of(len(driver.gpus), "GPU")
        if problem is None:
            return Found(len(driver.gpus), there)
        return Found(0, f"{there}, but {problem.text}: {problem.remedy}" if driver.gpus else problem.text)

    def describe(self) -> str:
        driver = ask_driver()
        return driver.gpus[0].name if driver is not None and driver.gpus else self.target

    def checks(self) -> Iterator[CheckResult]:
        return _checks(ask_driver())

    def check(self, asked: str, otherwise: str, n_ranks: int = 1, *, joins: bool = False) -> None:
        driver = ask_driver()
        refuse_wrong(_checks(driver), asked, otherwise)
        count = 0 if driver is None else len(driver.gpus)
        if n_ranks > count:
            raise ConfigError(
                f"--devices asks for {number_of(n_ranks, 'GPU')} on this host, but MindSpore can use {count}; ask for "
                "no more than that, because two ranks can't share a GPU"
            )

    def rank_environment(self, number: int, *, is_alone: bool) -> dict[str, str]:
        return {VISIBLE_DEVICES: visible_device(number), "DEVICE_ID": "0"}  # the first and only one that the rank sees

    def make_ready(self, asked: str, otherwise: str) -> None:
        if "mindspore" not in sys.modules:  # otherwise load_cuda_backend may say that it is too late
            driver = ask_driver()
            refuse_wrong(_checks(driver), asked, otherwise)
            _log_compilation(driver)
        load_cuda_backend()


def _checks(driver: Driver | None) -> Iterator[CheckResult]:
    yield _driver(driver)
    gpus = () if driver is None else driver.gpus
    for (name, capability, memory), count in Counter(gpus).items():
        text = f"{count} x {name}, {memory / 1e9:.1f} GB, compute capability {_dotted(capability)}"
        yield CheckResult("GPU", text)
    try:
        cuda_backend()
    except MissingPackageError:  # MindSpore itself is missing
        return
    except ConfigError as error:
        yield CheckResult("backend", error.problem, error.remedy)
        return
    yield from _cuda()
    code = cuda_code(cuda_kernels())
    for capability in dict.fromkeys(gpu.capability for gpu in gpus):
        yield _kernels(code, capability)


def _driver(driver: Driver | None) -> CheckResult:
    if driver is None:
        text = f"this machine has no NVIDIA driver ({DRIVER} can't be loaded)"
        return CheckResult("driver", text, "install NVIDIA's driver")
    release = driver_release()
    name = "NVIDIA's driver" if release is None else f"NVIDIA's driver {release}"
    newest = f"runs CUDA up to {_dotted(driver.cuda)}"
    if (0, 0) < driver.cuda < _OLDEST_CUDA:
        return CheckResult("driver", f"{name} {newest}", "install version 450.80 or newer, for CUDA 11")
    if driver.fault:
        remedy = "look at nvidia-smi, and restart the machine if the driver was updated"
        return CheckResult("driver", f"{name} fails ({driver.fault})", remedy)
    if driver.gpus:
        return CheckResult("driver", f"{name} {newest}")
    visible = os.environ.get(VISIBLE_DEVICES)
    if visible is None:
        return CheckResult("driver", f"{name} finds no GPU", "look at nvidia-smi")
    text = f"{name} finds no GPU, and {VISIBLE_DEVICES} is {visible!r}"
    return CheckResult("driver", text, f"name GPUs of this machine in {VISIBLE_DEVICES}, or unset it")


def _cuda() -> Iterator[CheckResult]:
    try:
        libraries = cuda_libraries()
    except ConfigError as error:
        yield CheckResult("CUDA", error.problem, error.remedy)
        return
    for name, library in (("CUDA", "libcudart.so.11.0"), ("cuDNN", "libcudnn.so.8")):
        yield CheckResult(name, f"{library_version(library)}, in {libraries[library].parent}")


def _kernels(code: CudaCode, capability: Version) -> CheckResult:
    kernels = f"MindSpore's kernels for compute capability {_dotted(capability)}"
    if code.runs_on(capability):
        return CheckResult("kernels", f"{kernels} are native")
    if code.is_compiled_for(capability):
        text = (
            f"{kernels} are compiled by the driver at their first use, which takes about a quarter of an hour, once; "
            f"it keeps them in {kernel_cache()}"
        )
        return CheckResult("kernels", text)
    oldest = _dotted(min(code.native))
    return CheckResult("kernels", f"{kernels} are not in its package, which begins at {oldest}", "use a newer GPU")


def _log_compilation(driver: Driver | None) -> None:
    """Log that the driver will compile the kernels; at level DEBUG if its cache may already have them."""
    gpus = () if driver is None else driver.gpus
    code = cuda_code(cuda_kernels())
    cache = kernel_cache()
    is_empty = not cache.is_dir() or not any(cache.iterdir())
    for capability in {gpu.capability for gpu in gpus}:
        if code.is_compiled_for(capability):
            _log.log(logging.INFO if is_empty else logging.DEBUG, _kernels(code, capability).text)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
