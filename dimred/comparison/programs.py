"""Run the programs of the stages as processes of their own, for a comparison."""

import logging
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dimred.errors import FaultError, StoppedError

_log = logging.getLogger(__name__)


def run_program(what: str, program: str, arguments: Sequence[str], out: Path) -> None:
    """Run a program of ``dimred.pipelines`` with its log beside the folder ``out``, or resume its run there.

    Args:
        what: name of the run, for the log and for errors.
        program: name of the program.
        arguments: its command line, without ``--out``.
        out: folder of the run.

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
    """Run a command that prints into a file, and return its status; a stop signal lets it save first."""
    with (
        log.open("a") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        try:
            return process.wait()
        except StoppedError:
            process.send_signal(signal.SIGINT)  # ctrl-C in a terminal does not reach another session
            process.wait()
            raise
