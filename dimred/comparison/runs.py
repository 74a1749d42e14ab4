"""A comparison's runs: the stage 1 that it starts from, and programs that train in their own folders."""

import logging
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dimred.config import DataConfig, StageOneConfig, StageTwoConfig, config_text
from dimred.errors import ConfigError, DivergedError, FaultError
from dimred.io.atomic import atomic_write, make_folder
from dimred.launch.programs import start
from dimred.run_files.run_names import STAGE_1_CHECKPOINTS, full_checkpoints

_log = logging.getLogger(__name__)


class DivergedRunError(DivergedError):
    """A comparison's training run diverged.

    Args:
        message: the error's text.
        seconds: wall seconds that the program had taken by then.
        rates: the rates at which it diverged, in words; empty if only one was tried.
    """

    def __init__(self, message: str, seconds: float, rates: str = ""):
        super().__init__(message)
        self.seconds = seconds
        self.rates = rates


def run_stage(
    program: str, data: Path, out: Path, config: StageOneConfig | StageTwoConfig, options: Sequence[str], title: str
) -> None:
    """Run a ``dimred.pipelines`` program in a folder, or resume it there, and write its log beside the folder.

    Args:
        program: ``stage_1`` or ``stage_2``.
        data: the program's DATA.
        out: its folder; ``out.yaml`` and ``out.log`` are its configuration and its log.
        config: its configuration.
        options: its other arguments.
        title: what the log and errors call the run.

    Raises:
        DivergedRunError: its training diverged.
        FaultError: the program was ended, or failed in another way.
    """
    config_file, log = (out.parent / f"{out.name}{ending}" for ending in (".yaml", ".log"))
    make_folder(out.parent)
    atomic_write(config_file, config_text(config))
    _log.info(f"{title}, see {log}")
    _log.debug(title)
    command = [sys.executable, "-P", "-m", f"dimred.pipelines.{program}", data, *options, f"--config={config_file}"]
    started = time.perf_counter()
    with ExitStack() as stack:
        status = start(stack, [*command, f"--out={out}", "--resume"], log).wait()
    message = f"{title} ended with status {status}; {log} says why"
    if status == DivergedError.exit_status:
        raise DivergedRunError(message, time.perf_counter() - started)
    if status != 0:
        raise FaultError(message)


def checkpoint_of(run: Path, epoch: int) -> Path:
    """Find the full checkpoint that stage 1 wrote after an epoch.

    Raises:
        ConfigError: there is none.
    """
    checkpoints = full_checkpoints(run / STAGE_1_CHECKPOINTS)
    if epoch not in checkpoints:
        epochs = ", ".join(map(str, sorted(checkpoints))) or "none"
        raise ConfigError(
            f"RUN is {str(run)!r}, which has no full checkpoint of epoch {epoch} (epochs with one: {epochs}); finish "
            "stage 1 first, with its --resume, or train it with a smaller checkpoints.every_epochs"
        )
    return checkpoints[epoch]


def on_one_process(stage: StageOneConfig | StageTwoConfig, n_ranks: int) -> dict[str, int | DataConfig]:
    """Return the options that make one process take exactly the batches of several ranks, as micro-batches.

    Args:
        stage: configuration of a stage that ran on these ranks.
        n_ranks: the number of ranks.

    Returns:
        New values of ``accumulation`` and ``data``; for several ranks, ``data.sink`` is off.
    """
    sink = stage.data.sink and n_ranks == 1
    multiple_of = stage.data.multiple_of * n_ranks
    data = stage.data.model_copy(update={"sink": sink, "multiple_of": multiple_of})
    return {"accumulation": stage.accumulation * n_ranks, "data": data}
