"""Run the programs of a comparison, and train the stage 1 of each seed where none is given."""

import logging
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dimred.comparison.checks import check_same_stage_1, checkpoint_of
from dimred.config import StageOneConfig, load_config
from dimred.errors import FaultError, StoppedError
from dimred.io.run_names import CONFIG, STAGE_1_CHECKPOINTS, full_checkpoints

_log = logging.getLogger(__name__)


def train_stage_1(data: Path, seed: int, config: Path, at: Sequence[int], out: Path) -> Path:
    """Train the stage 1 of a seed, or to its end if it is not finished; return its folder.

    With epochs ``at`` it goes to the last of them, also after an earlier call, leaves a full checkpoint at each, and
    keeps every snapshot.

    Raises:
        ConfigError: it is of another configuration, or past one of the epochs and left no full checkpoint there.
        FaultError: the training failed.
    """
    run, end, at = out / f"seed_{seed}" / "stage_1", max(at, default=0), list(at)
    one = load_config(StageOneConfig, config)
    if (run / CONFIG).exists():
        check_same_stage_1(one, run)
        earlier = load_config(StageOneConfig, run / CONFIG).epochs
        reached = max(full_checkpoints(run / STAGE_1_CHECKPOINTS), default=0)
        for epoch in at:
            if epoch <= reached:
                checkpoint_of(run, epoch)
        if earlier >= end and earlier in full_checkpoints(run / STAGE_1_CHECKPOINTS):
            return run
        if at:
            at, end = [*at, earlier], max(end, earlier)
    options = [f"--set=seed={seed}"]
    if at:
        every = math.gcd(*at)
        taken = (end - one.snapshots.first_epoch + 1) * one.snapshots.per_epoch  # the first ones must last to the end
        saved = {"epochs": end, "checkpoints.every_epochs": every, "checkpoints.keep": end // every, "stop": "null"}
        saved["snapshots.keep"] = max(taken, one.snapshots.keep)
        for key, value in saved.items():
            options += [f"--set={key}={value}", f"--allow-change={key}"]
    run_program(f"seed {seed}: stage 1", "stage_1", [str(data), f"--config={config}", *options], run)
    return run


def run_program(what: str, program: str, arguments: Sequence[str], out: Path) -> None:
    """Run one of ``dimred.pipelines`` in the folder ``out``, or finish its run there; its log is beside the folder.

    Args:
        what: told the user.
        program: its name.
        arguments: its command line, without ``--out``.
        out: the folder of its run.

    Raises:
        FaultError: it failed.
    """
    log = out.with_name(f"{out.name}.log")
    _log.info(f"{what}, see {log}")
    _log.debug(what)
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", f"dimred.pipelines.{program}", *arguments, "--out", str(out), "--resume"]
    if (status := run_logged(command, log)) != 0:
        raise FaultError(f"{what} ended with status {status}; {log} says why")


def run_logged(command: Sequence[str], log: Path) -> int:
    """Run a command that prints into a file; return its status. A signal ends it, and waits until it has saved."""
    with (
        log.open("a") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        try:
            return process.wait()
        except StoppedError:
            process.send_signal(signal.SIGINT)  # a terminal's ctrl-C does not reach another session
            process.wait()
            raise
