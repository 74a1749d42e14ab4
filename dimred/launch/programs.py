"""Start a program that is not a rank, and end it with this process."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dimred.io.system import start_tied
from dimred.launch.environment import without_cluster
from dimred.launch.signals import postponed


def start(programs: ExitStack, command: Sequence[object], log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start and return a program that is not a rank; it has its own session, so ctrl-C does not reach it.

    The program gets SIGTERM when this process ends, however that happens, or when the thread that started it ends; see
    ``start_tied``.

    Args:
        programs: when this stack exits, the program gets SIGTERM and is waited for, so that it can save.
        command: program and arguments.
        log: file to append its output to; None for this process's output.
    """
    file = None if log is None else programs.enter_context(log.open("a"))
    environment = without_cluster(os.environ)
    with postponed():  # a signal between the start and the callbacks would leave the program running
        process = start_tied([*map(str, command)], signal.SIGTERM, env=environment, stdout=file, stderr=file)
        programs.callback(process.wait)
        programs.callback(process.terminate)
    return process
