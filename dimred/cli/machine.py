"""``dimred doctor`` checks whether this machine can train; ``dimred bench`` measures how fast."""

import importlib.metadata
import io
import json
import logging
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dimred import __version__
from dimred.console import Data, DeviceTargetIfGiven, Overrides
from dimred.errors import DISTRIBUTION, ConfigError, DimredError, MissingPackageError, number_of
from dimred.io.atomic import atomic_write, describe_os_error
from dimred.io.file_format import FileFormat
from dimred.io.system import free_bytes
from dimred.launch.device import CheckResult, Target
from dimred.launch.devices import DEVICES, choose_devices
from dimred.launch.job import can_join_ranks
from dimred.run_files.metrics_file import json_text

if TYPE_CHECKING:
    from dimred.proof.difference import Difference

_log = logging.getLogger(__name__)

# Bytes; MindSpore alone takes half a gigabyte per rank.
_LEAST_MEMORY = 2e9
_LEAST_DISK = 1e9
_REPORT = FileFormat("dimred doctor report", 1)
_Answer = list["Difference"] | str  # a check's numbers, or the error that ended it
_PACKAGES = ("mindspore", "numpy", "scipy", "scikit-learn", "h5py", "safetensors")


def doctor(
    device_target: DeviceTargetIfGiven = None,
    devices: Annotated[
        int | None,
        typer.Option(min=2, help="Number of ranks in the collective; by default all devices, or 2 on a CPU."),
    ] = None,
    master_port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="Port through which the ranks join; by default a free one.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Also prove that training is correct here, and write a file to attach to a report."
        ),
    ] = False,
) -> None:
    """Check whether this machine can train, and say how to fix what is wrong.

    It checks versions, the device with its driver and libraries, memory, this folder's disk, and oneDNN. If MindSpore,
    device and disk are fine, it also runs a training step, and a collective if several ranks can join; this takes half
    a minute. If the driver has to compile MindSpore's kernels for this GPU, it does so in that step. If a check failed,
    its line says how to fix that, and the exit status is 1. The checks for Ascend have never been run on a device.

    --full takes up to three minutes more. It compares kernels, training steps and search steps with NumPy, in graph
    mode and in PyNative; it kills a run, resumes it and compares the bytes; and it compares several ranks with one. At
    the end it names a file that holds every number: attach that file to a report.

    Example: dimred doctor

    Example: dimred doctor --full
    """
    device_target, devices = choose_devices(device_target, devices)
    device = DEVICES[device_target]
    versions = _versions()
    of_device = list(device.checks())
    disk = _disk()
    results = [*versions, *of_device, _memory(), disk, _instruction_set()]
    for result in results:
        _show(result)
    needed = [*of_device, disk, *(result for result in versions if result.name == "mindspore")]
    n_ranks = max(2, devices) if device.is_shared else devices
    can_compute = not any(result.remedy for result in needed)
    steps = list[tuple[str, int, int | None]]()
    if can_compute:
        steps.append(("one compiled step", 1, None))
    if can_compute and n_ranks > 1 and can_join_ranks():
        steps.append(("one collective", n_ranks, master_port))
    for step, n, port in steps:
        results.append(_step(f"{step}, {number_of(n, 'rank')}", n, device_target, port))
        _show(results[-1])
    if full:
        answers: dict[str, _Answer] = {}
        if can_compute:
            for check, answer in _proofs(device_target, [(n, port) for _, n, port in steps]):
                answers[check] = answer
                results.append(_judge(check, answer))
                _show(results[-1])
        print(f"report: {_write_report(device_target, results, answers)}")
    n_wrong = sum(bool(result.remedy) for result in results)
    print(f"{n_wrong} of {len(results)} need fixing" if n_wrong else "all is well")
    raise typer.Exit(int(n_wrong > 0))


def _show(result: CheckResult) -> None:
    name, text, remedy = result
    print(f"{'WRONG' if remedy else 'ok':5}  {name:28}  {text}" + (f"; {remedy}" if remedy else ""), flush=True)


def _versions() -> list[CheckResult]:
    versions = {"python": platform.python_version(), "dimred": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    results = [CheckResult("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))]
    if "mindspore" not in versions:
        return [*results, CheckResult("mindspore", "not installed", MissingPackageError("mindspore").remedy)]
    for name in ("mindspore", "numpy"):
        specifiers = _specifiers(name)
        if versions[name] not in specifiers:
            remedy = f"training needs another version: python -m pip install '{name}{specifiers}'"
            results.append(CheckResult(name, versions[name], remedy))
    return results


def _specifiers(package: str) -> SpecifierSet:
    """Return the versions of a package that satisfy all of dimred's requirements, extras included."""
    requirements = map(Requirement, _requirements())
    specifiers = [requirement.specifier for requirement in requirements if requirement.name == package]
    return SpecifierSet(",".join(map(str, specifiers)))


def _requirements() -> list[str]:
    """Return dimred's requirements; an empty list if it is used without being installed."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _memory() -> CheckResult:
    memory = psutil.virtual_memory()
    text = f"{memory.available / 1e9:.1f} GB of {memory.total / 1e9:.1f} GB are free"
    remedy = "end other programs, or use fewer ranks on this host"
    return CheckResult("memory", text, remedy if memory.available < _LEAST_MEMORY else "")


def _disk() -> CheckResult:
    here = Path.cwd()
    free = free_bytes(here)
    text = f"the free space in {here} is unknown" if free is None else f"{free / 1e9:.1f} GB are free in {here}"
    try:
        with tempfile.TemporaryFile(dir=here) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        text += f", where nothing can be written ({describe_os_error(error)})"
        return CheckResult("disk", text, "make room, or work in another folder")
    remedy = "make room, or work on another disk: a run keeps snapshots"
    return CheckResult("disk", text, remedy if free is not None and free < _LEAST_DISK else "")


def _instruction_set() -> CheckResult:
    from dimred.workarounds.onednn_cap import ISA_VARIABLE, has_avx512

    cap = os.environ.get(ISA_VARIABLE) or os.environ.get("DNNL_MAX_CPU_ISA")
    if not has_avx512():
        return CheckResult("oneDNN", f"no AVX-512 here, so no cap is needed ({cap or 'none'})")
    is_capped = (cap or "").upper() in ("AVX2", "AVX", "SSE41", "AVX2_VNNI")
    remedy = f"unset {ISA_VARIABLE}, or set it to AVX2: convolutions are 20 times slower uncapped"
    return CheckResult("oneDNN", f"instruction set capped at {cap}", "" if is_capped else remedy)


def _step(name: str, devices: int, target: Target, port: int | None) -> CheckResult:
    os.environ.setdefault("MS_TOPO_TIMEOUT", "60")
    _log.debug(f"running {name}")
    try:
        return CheckResult(name, _last_line("doctor", ["--device-target", target], devices, target, port))
    except DimredError as error:
        return CheckResult(name, "failed", str(error))
    except OSError as error:
        return CheckResult(name, f"failed: {describe_os_error(error)}", "fix this folder's disk first")


def _last_line(program: str, arguments: list[str], devices: int, target: Target, port: int | None = None) -> str:
    """Run ``pipelines/machine.py`` through the launcher, in a temporary subfolder; return the last line it prints."""
    from dimred.launch.job import make_job
    from dimred.launch.launcher import launch

    output = io.StringIO()
    with tempfile.TemporaryDirectory(prefix=f".dimred-{program}-", dir=Path.cwd()) as out, redirect_stdout(output):
        job = make_job(
            "dimred.pipelines.machine",
            program,
            [program, *arguments],
            out=Path(out),
            devices=devices,
            device_target=target,
            master_port=port,
        )
        status = launch(job)
    if status:  # a signal stopped it
        raise typer.Exit(status)
    return output.getvalue().strip().splitlines()[-1]


def _proofs(target: Target, groups: Sequence[tuple[int, int | None]]) -> Iterator[tuple[str, _Answer]]:
    """Yield each ``--full`` check with its answer; ``groups`` has pairs (number of ranks, port that joins them)."""
    for n_ranks, port in groups:
        yield from _proved(target, n_ranks, port).items()
    yield "a run that is killed and resumed", _resumed(target)


def _proved(target: Target, n_ranks: int, port: int | None) -> dict[str, _Answer]:
    """Return the answers to the checks that ``pipelines/machine.py`` makes on these ranks."""
    _log.debug(f"comparing {number_of(n_ranks, 'rank')} with NumPy and with one rank")
    try:
        found = json.loads(_last_line("prove", ["--device-target", target], n_ranks, target, port))
    except (DimredError, OSError, ValueError) as error:
        return {f"comparisons, {number_of(n_ranks, 'rank')}": str(error)}
    return {check: _answer(answer) for check, answer in found.items()}


def _answer(found: Any) -> _Answer:
    from dimred.proof.difference import Difference

    return found if isinstance(found, str) else [Difference(*difference) for difference in found]


def _resumed(target: Target) -> _Answer:
    from dimred.proof.resume import killed_and_resumed

    _log.debug("killing a run and resuming it")
    try:
        with tempfile.TemporaryDirectory(prefix=".dimred-doctor-", dir=Path.cwd()) as folder:
            return killed_and_resumed(Path(folder), target)
    except (DimredError, OSError) as error:
        return str(error)


def _judge(check: str, answer: _Answer) -> CheckResult:
    if isinstance(answer, str):
        return CheckResult(check, "failed", answer)
    wrong = [
        f"{difference.name}: {difference.value:.2g} (the limit is {difference.limit:.2g})"
        for difference in answer
        if not difference.is_right
    ]
    if wrong:
        return CheckResult(check, ", ".join(wrong), "report it, with the file named below")
    return CheckResult(check, ", ".join(f"{difference.name} {difference.value:.1g}" for difference in answer))


def _write_report(target: Target, results: Sequence[CheckResult], answers: Mapping[str, _Answer]) -> Path:
    """Write all results and numbers into a new file in the working folder, and return its path."""
    now = datetime.now().astimezone()
    content = {
        "time": now.isoformat(timespec="seconds"),
        "system": platform.platform(),
        "device target": target,
        "results": [{"what": name, "text": text, "remedy": remedy} for name, text, remedy in results],
        "numbers": {
            check: answer if isinstance(answer, str) else [difference._asdict() for difference in answer]
            for check, answer in answers.items()
        },
    }
    path = Path.cwd() / f"dimred-doctor-{now:%Y%m%d-%H%M%S}.json"
    try:
        atomic_write(path, json_text(_REPORT.marked(content), indent=2) + "\n")
    except OSError as error:
        raise ConfigError(
            f"--full can't write its report {path} ({describe_os_error(error)}); run dimred doctor in another folder"
        ) from error
    return path


def bench(
    data: Data,
    config: Annotated[Path, typer.Option(help="YAML file, or a recipe such as digits.")],
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices of this host; by default all, or one CPU.")
    ] = None,
    device_target: DeviceTargetIfGiven = None,
    overrides: Overrides = None,
) -> None:
    """Time 50 steps of stage 1 with your network, data and ranks.

    It prints a Markdown table with one row. The first 10 steps are warm-up and are not timed. A step's time includes
    reading its batch, but no evaluation and no snapshot. Nothing is kept.

    Example: dimred bench ./imagenet --config imagenet

    Example: dimred bench ./imagenet --config imagenet | tail -n 1 >> bench.md
    """
    from dimred.config import StageOneConfig, config_file, load_config

    config = config_file(config).absolute()
    load_config(StageOneConfig, config, overrides or [])
    if not data.exists():
        raise ConfigError(f"DATA is {str(data)!r}, which does not exist")
    device_target, devices = choose_devices(device_target, devices)
    arguments = [str(data.absolute()), "--config", str(config), "--device-target", device_target]
    arguments += [f"--set={override}" for override in overrides or []]
    measures = json.loads(_last_line("bench", arguments, devices, device_target))
    for cells in (measures, ["---"] * len(measures), measures.values()):
        print("| " + " | ".join(map(str, cells)) + " |")
