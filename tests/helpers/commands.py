"""Start the programs as a person would."""

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

REPOSITORY = Path(__file__).parents[2]
CONFIGS = REPOSITORY / "pipelines" / "configs"
DIGITS = CONFIGS / "digits.yaml"
N_SNAPSHOTS = 36
SHORT = [
    f"--set={option}"
    for option in ("epochs=3", "snapshots.per_epoch=12", "snapshots.first_epoch=1", "reestimate_batches=2")
]
DIMRED = Path(sys.executable).with_name("dimred")
"""The installed command, with which the commands that a run prints begin unless the environment is active."""
ON_PATH = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
TWO_RANKS = ("--devices", "2", "--device-target", "CPU")


def run(
    *command: object,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
    timeout_seconds: float = 600,
    status: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command as a person would type it, in a process of its own, and return it once it has ended.

    Args:
        command: the words of the command.
        cwd: folder to run it in; None for the present one.
        environment: variables in addition to those of this process.
        timeout_seconds: time after which it is killed, and the test fails.
        status: the exit status that it must end with; None for any.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def program(name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", f"dimred.pipelines.{name}", *arguments, **options)


def in_a_terminal(*command: object, cwd: Path, log: Path | None = None, **environment: str) -> str:
    """Run a command on a pseudo-terminal, with standard output in ``log`` if given; return what the terminal showed."""
    typed = shlex.join(map(str, command)) + ("" if log is None else f" > {shlex.quote(str(log))}")
    terminal = {"TERM": "xterm", "COLUMNS": "120"} | environment
    return run("script", "-qec", typed, "/dev/null", cwd=cwd, environment=terminal, status=0).stdout


def dimred(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return run(DIMRED, *arguments, **options)


def dimred_here(
    *arguments: object, cwd: Path | None = None, status: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``dimred`` in this process, which saves a second; otherwise as ``run``."""
    from dimred.cli.main import app

    out, err, typed = io.StringIO(), io.StringIO(), ["dimred", *map(str, arguments)]
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd or Path.cwd()),
        patch.object(sys, "argv", typed),
        pytest.raises(SystemExit) as left,
    ):
        app()
    assert isinstance(left.value.code, int)
    assert status in (None, left.value.code), out.getvalue() + err.getvalue()
    return subprocess.CompletedProcess(typed, left.value.code, out.getvalue(), err.getvalue())


def next_lines(shown: str) -> list[str]:
    """Return the commands that a run printed last, as a person would copy them."""
    return re.findall(r"^(?:next|then): (.*)$", shown, re.MULTILINE)


def script(stage: int, *arguments: object) -> list[str]:
    return ["bash", str(REPOSITORY / "scripts" / f"run_stage_{stage}.sh"), *map(str, arguments)]


def command_words(command: Any, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """List a command and all its subcommands, as they are typed after ``dimred``."""
    below = [(name, command.get_command(None, name)) for name in getattr(command, "commands", ())]
    return [words, *(found for name, part in below for found in command_words(part, (*words, name)))]


@dataclass(frozen=True)
class TwoStages:
    """The paths of the shared run in ``folder``, and what stage 1 printed."""

    folder: Path
    data: Path

    @property
    def stage_1(self) -> Path:
        return self.folder / "stage 1 é"

    @property
    def weights(self) -> Path:
        return self.stage_1 / "checkpoint_stage_1" / "resnet_small-3_37.ckpt"

    @property
    def snapshots(self) -> Path:
        return self.weights.parent / "checkpoint_pca"

    @property
    def matrix(self) -> Path:
        return self.folder / "pca_mat.npy"

    @property
    def stage_1_output(self) -> str:
        return (self.folder / "shown").read_text()
