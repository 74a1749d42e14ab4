"""The ``dimred`` command. Ctrl-C ends it without a traceback, even while modules are imported."""

import os
import signal
from types import FrameType

from dimred.launch.environment import leave_cluster


def app() -> None:
    """Run ``dimred``; see ``run_command``. No command joins a cluster itself, whatever the environment says."""
    leave_cluster()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from dimred.cli.commands import command_line
        from dimred.console import run_command

        run_command(command_line)
    finally:
        signal.signal(signal.SIGINT, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt or, during an import, end the process.

    Some libraries turn a KeyboardInterrupt during their import into another error, and after one MindSpore aborts at
    exit.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        frame = frame.f_back
    raise KeyboardInterrupt
