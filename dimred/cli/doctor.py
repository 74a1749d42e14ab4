"""``dimred doctor``: whether this machine can train, and how to mend what is wrong."""

import importlib.metadata
import io
import os
import platform
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import psutil
import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dimred import ISA_VARIABLE, __version__, has_avx512
from dimred.console import DeviceTarget
from dimred.errors import DimredError, MissingPackageError
from dimred.io.atomic import describe_os_error

_LEAST_MEMORY, _LEAST_DISK = 2e9, 1e9  # bytes; MindSpore alone takes half a gigabyte for each rank
_PACKAGES = ("mindspore", "numpy", "scipy", "scikit-learn", "h5py", "safetensors")
_CANN = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # set by CANN's set_env.sh

_NEEDED_FOR_A_JOB = ("mindspore", "device", "CANN", "disk")


class Finding(NamedTuple):
    """One check: its name, what it found, and the remedy if that is wrong."""

    what: str
    found: str
    remedy: str = ""


def doctor(
    device_target: DeviceTarget = "CPU",
    devices: Annotated[int, typer.Option(min=2, help="Number of ranks in the collective.")] = 2,
    master_port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="Port to join the ranks through; a free one by default.")
    ] = None,
) -> None:
    """Check whether this machine can train: versions, device, memory, disk of this folder, a step, a collective.

    Takes half a minute. Exit status 1 if something is wrong; the line says how to mend it. The checks for Ascend were
    never run on a device.

    Example: dimred doctor --device-target Ascend --devices 8
    """
    findings = [*_versions(), _device(device_target), _cann(device_target), _memory(), _disk(), _instruction_set()]
    for finding in findings:
        _show(finding)
    if not any(finding.remedy for finding in findings if finding.what in _NEEDED_FOR_A_JOB):
        for what, n_ranks, port in (("one compiled step", 1, None), ("one collective", devices, master_port)):
            findings.append(_job(f"{what}, {n_ranks} rank{'s'[: n_ranks - 1]}", n_ranks, device_target, port))
            _show(findings[-1])
    n_wrong = sum(bool(finding.remedy) for finding in findings)
    print(f"{n_wrong} of {len(findings)} need mending" if n_wrong else "all is well")
    raise typer.Exit(int(n_wrong > 0))


def _show(finding: Finding) -> None:
    what, found, remedy = finding
    print(f"{'WRONG' if remedy else 'ok':5}  {what:28}  {found}" + (f"; {remedy}" if remedy else ""), flush=True)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> list[Finding]:
    found = {"python": platform.python_version(), "dimred": __version__}
    found |= {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    told = ", ".join(f"{name} {version}" for name, version in found.items())
    findings = [Finding("versions", told)]
    if "mindspore" not in found:
        findings.append(Finding("mindspore", "not installed", str(MissingPackageError("mindspore")).split("; ")[1]))
        return findings
    for name in ("mindspore", "numpy"):
        if found[name] not in (allowed := _allowed(name)):
            findings.append(
                Finding(name, found[name], f"training needs another: python -m pip install '{name}{allowed}'")
            )
    return findings


def _allowed(package: str) -> SpecifierSet:
    """Return the versions of a package that dimred's own requirements allow, those of training among them."""
    requirements = map(Requirement, importlib.metadata.requires("dimred") or ())
    return SpecifierSet(",".join(str(one.specifier) for one in requirements if one.name == package))


def _device(target: Literal["CPU", "Ascend"]) -> Finding:
    from dimred.launch.job import ASCEND_DEVICE

    n_cores = len(os.sched_getaffinity(0))
    told = f"{target}; {n_cores} of the host's {os.cpu_count()} cores for this process"
    if target == "Ascend" and not ASCEND_DEVICE.exists():
        told = f"Ascend, but {ASCEND_DEVICE} is missing"
        return Finding("device", told, "install the driver, or give --device-target CPU")
    return Finding("device", told)


def _cann(target: Literal["CPU", "Ascend"]) -> Finding:
    home = next((os.environ[name] for name in _CANN if os.environ.get(name)), None)
    if home is None:
        return Finding("CANN", "none" if target == "CPU" else f"none: neither {' nor '.join(_CANN)} is set",
                       "" if target == "CPU" else "install CANN, and source its set_env.sh")  # fmt: skip
    if not Path(home).is_dir():
        return Finding("CANN", f"{home}, which is not there", "source the set_env.sh of a CANN that is installed")
    lines = [line for path in Path(home).glob("version.*") for line in path.read_text(errors="replace").splitlines()]
    version = next((line.strip() for line in lines if "ersion" in line), "no version found")
    return Finding("CANN", f"{home} ({version})")


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    told = f"{memory.available / 1e9:.1f} GB of {memory.total / 1e9:.1f} GB are free"
    remedy = "end other programs, or use fewer ranks on this host"
    return Finding("memory", told, remedy if memory.available < _LEAST_MEMORY else "")


def _disk() -> Finding:
    here = Path.cwd()
    told = f"{psutil.disk_usage(str(here)).free / 1e9:.1f} GB are free in {here}"
    try:
        with tempfile.TemporaryFile(dir=here) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        return Finding("disk", f"{told}, where nothing can be written ({describe_os_error(error)})",
                       "make room, or work in another folder")  # fmt: skip
    is_full = psutil.disk_usage(str(here)).free < _LEAST_DISK
    return Finding("disk", told, "make room, or work on another disk: a run keeps snapshots" if is_full else "")


def _instruction_set() -> Finding:
    told = os.environ.get(ISA_VARIABLE) or os.environ.get("DNNL_MAX_CPU_ISA")
    if not has_avx512():
        return Finding("oneDNN", f"no AVX-512 here, so no cap is needed ({told or 'none'})")
    is_capped = (told or "").upper() in ("AVX2", "AVX", "SSE41", "AVX2_VNNI")
    remedy = f"unset {ISA_VARIABLE}, or set it to AVX2: convolutions are 20 times slower without"
    return Finding("oneDNN", f"instruction set capped at {told}", "" if is_capped else remedy)


def _job(what: str, devices: int, target: Literal["CPU", "Ascend"], port: int | None) -> Finding:
    """Run the rank program through the launcher, in a temporary folder of this one."""
    from dimred.launch.job import make_job
    from dimred.launch.launcher import launch

    os.environ.setdefault("MS_TOPO_TIMEOUT", "60")
    printed = io.StringIO()
    try:
        with tempfile.TemporaryDirectory(prefix=".dimred-doctor-", dir=Path.cwd()) as out, redirect_stdout(printed):
            job = make_job(
                "dimred.pipelines.doctor", "doctor", ["--device-target", target],
                out=Path(out), devices=devices, device_target=target, master_port=port,
            )  # fmt: skip
            launch(job)
    except DimredError as error:
        return Finding(what, "failed", str(error))
    except OSError as error:
        return Finding(what, f"failed: {describe_os_error(error)}", "mend the disk of this folder first")
    return Finding(what, printed.getvalue().strip().splitlines()[-1])
