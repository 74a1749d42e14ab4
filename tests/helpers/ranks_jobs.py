"""Jobs of two ranks in processes of their own, and the files that they leave."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.commands import REPOSITORY, TWO_RANKS, run, script
from tests.helpers.processes import others
from tests.helpers.results import results
from tests.helpers.tiny_task import TASK


@dataclass(frozen=True)
class RanksJob:
    """A job of two ranks that ran uninterrupted in ``folder``: its command, what it wrote, and what it showed."""

    stage: int
    command: list[str]
    folder: Path
    results: dict[str, Any]
    shown: str


def results_of(out: Path, stage: int) -> dict[str, Any]:
    """Read rank 0's files except its logs; rank 1 writes only logs."""
    return {name: found for name, found in results(out / f"device0_stage_{stage}").items() if not name.endswith(".log")}


def uninterrupted(stage: int, command: list[str], out: Path, **environment: str) -> RanksJob:
    done = run(*command, cwd=out, environment=environment, status=0)
    return RanksJob(stage, command, out, results_of(out, stage), done.stdout)


def job_in_milliseconds(out: Path, **more: object) -> RanksJob:
    """Run stage 1 of the task that trains in milliseconds, with more keys than these."""
    options = {"epochs": 5, "data.batch_size": 3, "snapshots.per_epoch": 2, "snapshots.first_epoch": 1}
    options |= {"snapshots.keep": 9, "snapshots.content": "mean", "schedule.warmup_epochs": 1} | more
    (out / "one.yaml").write_text(yaml.safe_dump(TASK))
    sets = [f"--set={key}={value}" for key, value in options.items()]
    command = script(1, out, "--config", out / "one.yaml", *TWO_RANKS, *sets)
    return uninterrupted(1, command, out, PYTHONPATH=str(REPOSITORY))


def started(command: list[str], folder: Path, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the command; return its process, and the file with what it prints."""
    log, variables = folder / "msg", os.environ | environment
    with log.open("wb") as file:
        return subprocess.Popen(command, cwd=folder, env=variables, stdout=file, stderr=subprocess.STDOUT), log


def program_of(folder: Path) -> int:
    """Find the process that writes to this folder: ``dimred.pipelines.stage_* ... --out FOLDER``."""
    found = [process.pid for process in others() if {str(folder), "--out"} <= set(process.info["cmdline"] or [])]
    assert found, f"no process writes to {folder}"
    return found[0]
