"""A GPU that does not compute: libraries that answer like NVIDIA's, built in seconds by a C compiler.

On it MindSpore selects kernels, compiles graphs and goes through every step as on a GPU, and raises where an operation
or a type has no kernel there. So it tells whether something is *there*; only a card tells whether it is *right*. No
number means anything: results are what the memory held before.
"""

import fcntl
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from dimred.workarounds.cuda_backend import CUDA_FOLDERS

_SOURCE = Path(__file__).with_name("fake_cuda.c")
_KERNELS, _COLLECTIVES = "libcuda_ops.so.11", "libnccl.so.2"
# soname -> the prefix of its functions; libraries of which MindSpore calls a function without a version come by prefix
_LIBRARIES = {
    "libcudart.so.11.0": "cuda",
    "libcublas.so.11": "cublas",
    "libcublasLt.so.11": "cublasLt",
    "libcudnn.so.8": "cudnn",
    "libcurand.so.10": "curand",
    "libcusolver.so.11": "cusolver",
    "libcusparse.so.11": "cusparse",
    "libcufft.so.10": "cufft",
    "libnvrtc.so.11.2": "nvrtc",
    "libcuda.so.1": "cu",
    _COLLECTIVES: "nccl",
}
_OF_CPLUSPLUS = ("_ZNSt", "_ZNKSt", "_ZSt", "_ZN9__gnu")  # templates of C++'s library, compiled into the kernels'
_OF_MINDSPORE = "/* MindSpore's kernels"  # what stands behind this in fake_cuda.c
_STUB = """
int {name}(void) {{
    static char is_noted;
    if (!is_noted) is_noted = 1, fake_called("{name}");
    return 0;
}}
"""
# A kernel of MindSpore: notes its name at the first call, and goes to the function that answers for it. At the call the
# registers have its arguments, which the note must leave as they are.
_KERNEL = """
.globl {name}
.type {name},@function
{name}:
 cmpb $0,noted+{number}(%rip)
 je 1f
 jmp {answer}@PLT
1:
 movb $1,noted+{number}(%rip)
 push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; sub $8,%rsp
 lea name_{number}(%rip),%rdi
 call fake_called@PLT
 add $8,%rsp; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi
 jmp {answer}@PLT
"""
_SIZES = {"b": 1, "h": 1, "a": 1, "s": 2, "t": 2, "6__half": 2, "i": 4, "j": 4, "f": 4, "l": 8, "m": 8, "d": 8}
_TYPE = f"({'|'.join(_SIZES)})"
_ANSWERS = {
    re.compile(r"_Z29BinaryOpWithBroadcastCudaFuncIL12BinaryOpType12EfffE"): "product",
    re.compile(rf"_Z29BinaryOpWithBroadcastCudaFuncIL12BinaryOpType\d+E{_TYPE}{_TYPE}(?P<out>{_TYPE})E"): "binary",
    re.compile(rf"_Z16UnaryOpsCudaFuncIL12ElwiseOpType\d+E{_TYPE}(?P<out>{_TYPE})E"): "unary",
    re.compile(
        rf"_Z32BinaryExtOpWithBroadcastCudaFuncIL12BinaryOpType\d+E{_TYPE}{_TYPE}{_TYPE}(?P<out>{_TYPE})E"
    ): "ternary",
    re.compile(r"_Z4CastI(?P<types>[bilf]{2})E"): "cast",
    re.compile(r"_Z6FillV2IfE"): "fill",
    re.compile(r"_Z11ArrayReduceI(?P<types>[fil])E"): "reduction",
}  # name of a kernel -> function in fake_cuda.c, which its types or the size of its output's type follow


def backend_folder() -> Path:
    """Return the folder of MindSpore's backends; the test is skipped where there is no backend to try."""
    plugin = Path(str(find_spec("mindspore").origin)).parent / "lib" / "plugin"
    if platform.machine() != "x86_64" or not (plugin / "libmindspore_gpu.so.11.6").exists():
        pytest.skip("this MindSpore has no CUDA backend")
    if shutil.which("cc") is None or shutil.which("nm") is None:
        pytest.skip("needs a C compiler and nm")
    return plugin


def build_fake_cuda(folder: Path) -> Path:
    """Build the libraries in ``folder``, unless another process has; return the folder."""
    plugin = backend_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _KERNELS).exists():
            _build(folder, plugin)
    return folder


def fake_gpu(folder: Path, **settings: str) -> dict[str, str]:
    """Return the variables of a process that has a fake GPU; see ``fake_cuda.c`` for ``settings``.

    The driver is found through LD_LIBRARY_PATH. MindSpore's own libraries would come from its folder, so they are
    preloaded.
    """
    variables = {
        CUDA_FOLDERS: str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": f"{folder / _KERNELS}:{folder / _COLLECTIVES}",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(int(settings.get("FAKE_GPUS", "1"))))),
    }
    return variables | settings


def _build(folder: Path, plugin: Path) -> None:
    source, _, _ = _SOURCE.read_text().partition(_OF_MINDSPORE)
    callers = (plugin / "libmindspore_gpu.so.11.6", plugin / "gpu" / _KERNELS)
    called = [name for library in callers for name in _symbols(library, "--undefined-only")]
    called += _symbols(plugin / "gpu11.6" / "libnvidia_collective.so", "--undefined-only")
    owners = sorted(_LIBRARIES, key=lambda library: -len(_LIBRARIES[library]))  # so that the driver's cu comes last
    for library in _LIBRARIES:
        names = set()
        for symbol in called:
            name, _, version = symbol.partition("@")
            by_prefix = next((owner for owner in owners if name.startswith(_LIBRARIES[owner])), None)
            if library == (version if version in _LIBRARIES else by_prefix) and not _defines(source, name):
                names.add(name)
        _compile(folder, library, source + "".join(_STUB.format(name=name) for name in sorted(names)))
    _compile_kernels(folder, _symbols(plugin / "gpu" / _KERNELS, "--defined-only"))


def _symbols(library: Path, kind: str) -> list[str]:
    """List the functions that a library calls or has."""
    listed = subprocess.run(["nm", "-D", kind, library], capture_output=True, text=True, check=True).stdout
    return [words[-1] for words in map(str.split, listed.splitlines()) if words[-2] in ("U", "T", "W")]


def _defines(source: str, name: str) -> bool:
    return re.search(rf"[ *(]{name}[()]", source) is not None


def _compile(folder: Path, library: str, source: str) -> None:
    text, script = folder / "fake.c", folder / "fake.map"
    text.write_text(source)
    has_version = library not in ("libcuda.so.1", _COLLECTIVES)
    script.write_text(f"{library} {{ global: *; }};\n")
    options = [f"-Wl,--version-script={script}"] if has_version else []
    command = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", *options, "-o", folder / library, text]
    subprocess.run(command, check=True)


def _compile_kernels(folder: Path, names: Iterable[str]) -> None:
    """Make a library with the names of all kernels; of C++'s own library, it would replace the real functions."""
    kernels = [name for name in names if name.startswith("_Z") and not name.startswith(_OF_CPLUSPLUS)]
    code = "".join(
        _KERNEL.format(name=name, number=number, answer=_answer(name)) for number, name in enumerate(kernels)
    )
    texts = "".join(f'name_{number}: .asciz "{name}"\n' for number, name in enumerate(kernels))
    stack = '.section .note.GNU-stack,"",@progbits\n'
    text, helper = folder / "kernels.s", folder / "fake.c"
    text.write_text(f".text\n{code}\n.local noted\n.comm noted,{len(kernels)},1\n.section .rodata\n{texts}{stack}")
    source, _, answers = _SOURCE.read_text().partition(_OF_MINDSPORE)
    helper.write_text(source.partition("/* The driver")[0] + _OF_MINDSPORE + answers)
    command = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{_KERNELS}", "-o", folder / _KERNELS, text, helper]
    subprocess.run(command, check=True)


def _answer(kernel: str) -> str:
    """Return the name of the function that answers for a kernel."""
    for pattern, answer in _ANSWERS.items():
        found = pattern.match(kernel)
        if found is not None:
            groups = found.groupdict()
            kind = groups.get("types", _SIZES.get(groups.get("out", "")))
            return answer if kind is None else f"{answer}_{kind}"
    return "done"
