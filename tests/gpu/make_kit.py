"""Pack all that a machine with a GPU needs if it reaches no package index: python -m tests.gpu.make_kit OUT

OUT gets part-00, part-01 ..., each below 53 MB, of one tar.xz with the folder ``kit``: in ``kit/site``, for PYTHONPATH,
MindSpore and the dependencies of dimred; in ``kit/cuda11``, for DIMRED_CUDA, CUDA 11.8. MindSpore's kernels are
compiled for the GPU beforehand, and CUDA's code for other GPUs is blanked, see ``retarget.py``. Of cuSOLVER, cuSPARSE
and cuFFT MindSpore makes a handle when it begins, and dimred calls nothing; so they are replaced by libraries that
succeed in that alone. It takes twenty minutes and 15 GB of disk on two idle cores.
"""

import argparse
import mmap
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.retarget import blank_others

_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
_EXTRAS = _PROJECT["optional-dependencies"]
_TOOLS = ("lz4", "nvidia-cuda-nvcc-cu11==11.8.89")  # of retarget.py
_PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
_LIBRARIES = (
    "libcudart.so.11.0",
    "libcublas.so.11",
    "libcublasLt.so.11",
    "libcurand.so.10",
    "libnvrtc.so.11.2",
    "libnvrtc-builtins.so.11.8",
    "libcudnn.so.8",
    "libcudnn_ops_infer.so.8",
    "libcudnn_ops_train.so.8",
    "libcudnn_cnn_infer.so.8",
    "libcudnn_cnn_train.so.8",
)
_NEVER_CALLED = ("libcusolver.so.11", "libcusparse.so.11", "libcufft.so.10")
_UNUSED = (
    "lib/plugin/ascend",
    "lib/plugin/gpu11.1",
    "lib/plugin/libmindspore_gpu.so.11.1",
    "lib/plugin/libmindspore_ascend.so.2",
    "lib/plugin/libmindspore_ops_ascend.so",
    "lib/plugin/cpu/libakg.so",
    "lib/plugin/gpu11.6/libakg.so",
    "include",
)  # of MindSpore's package


def main() -> None:
    """Pack the kit."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--python", default="3.12", help="version of the machine's Python")
    options.add_argument("--arch", type=int, default=90, help="the GPU's compute capability, 90 for an H100")
    options.add_argument("--work", type=Path, default=Path("/tmp/gpu_kit"), help="folder for the work, removed first")
    given = options.parse_args()
    kit, wheels, tools = given.work / "kit", given.work / "nvidia", given.work / "tools"
    shutil.rmtree(given.work, ignore_errors=True)
    (kit / "cuda11").mkdir(parents=True)
    _install(kit / "site", given.python, [*_PROJECT["dependencies"], *_EXTRAS["train"]])
    _install(wheels, given.python, [*_EXTRAS["cuda"], *_TOOLS], "--no-deps")
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, _TOOLS[0])
    mindspore = kit / "site" / "mindspore"
    for name in _UNUSED:
        unused = mindspore / name
        if unused.is_dir():
            shutil.rmtree(unused)
        else:
            unused.unlink(missing_ok=True)
    found = {path.name: path for path in wheels.rglob("*.so*")}
    for name in _LIBRARIES:
        shutil.copy(found[name], kit / "cuda11" / name)
    for name in _NEVER_CALLED:
        _make_empty(found[name], kit / "cuda11")
    for name in _LIBRARIES:
        _blank(kit / "cuda11" / name, given.arch)
    _compile_kernels(mindspore / "lib" / "plugin" / "gpu" / "libcuda_ops.so.11", wheels, tools, given)
    given.out.mkdir(parents=True, exist_ok=True)
    for old in given.out.glob("part-*"):
        old.unlink()
    _run("bash", "-c", f"set -o pipefail; tar -C {given.work} -c kit | xz -1 -T2 | split -b 50M -d - {given.out}/part-")
    for part in sorted(given.out.glob("part-*")):
        print(f"{part.name}: {part.stat().st_size / 1e6:.1f} MB")


def _run(*command: object, **options: object) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, **options)


def _install(target: Path, python: str, requirements: Sequence[str], *options: str) -> None:
    """Install wheels for the other machine's Python into a folder."""
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    of_target = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    _run(*pip, *of_target, *options, "--target", target, *requirements)


def _make_empty(real: Path, folder: Path) -> None:
    """Compile a library with the functions of the real one: those of handles do nothing, all others return an error."""
    listed = subprocess.run(["nm", "-D", "--defined-only", str(real)], capture_output=True, text=True, check=True)
    symbols = [line.split() for line in listed.stdout.splitlines()]
    names = sorted({words[2].partition("@")[0] for words in symbols if len(words) == 3 and words[1] in "TW"})
    source, script = folder / "empty.c", folder / "empty.map"
    status = {name: int(re.search("Create|Destroy|SetStream", name) is None) for name in names}
    source.write_text("\n".join(f"int {name}(void) {{ return {status[name]}; }}" for name in names))
    script.write_text(f"{real.name} {{ global: *; }};\n")
    options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{real.name}", f"-Wl,--version-script={script}"]
    _run("cc", *options, "-o", folder / real.name, source)
    source.unlink()
    script.unlink()


def _blank(library: Path, arch: int) -> None:
    """Blank a library's code for other GPUs, so that the kit has less than half of the parts."""
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        print(f"{library.name}: {blank_others(data, arch) / 1e6:.0f} MB for other GPUs are blanked", flush=True)


def _compile_kernels(library: Path, wheels: Path, tools: Path, given: argparse.Namespace) -> None:
    """Put code for the GPU into the library, so that its driver need not compile for a quarter of an hour."""
    ptxas = wheels / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    ptxas.chmod(0o755)
    out = given.work / library.name
    options = ["--arch", given.arch, "--ptxas", ptxas]
    _run(
        sys.executable, "-m", "tests.gpu.retarget", library, out, *options, env=os.environ | {"PYTHONPATH": str(tools)}
    )
    shutil.move(out, library)


if __name__ == "__main__":
    main()
