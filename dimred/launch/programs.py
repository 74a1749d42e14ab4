"""Start a program that is not a rank, and end it with this process."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dimred.launch.environment import without_cluster
from dimred.launch.processes import PR_SET_PDEATHSIG
from dimred.launch.signals import postponed

# Turns into the program in its arguments, which gets SIGTERM when the process with the id in the first argument ends.
# Code between fork and exec could request that too, but might deadlock on a lock that a thread of MindSpore held.
_ENDS_WITH = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def start(programs: ExitStack, command: Sequence[object], log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start and return a program that is not a rank, in its own session, so that ctrl-C reaches this process alone.

    However this process ends, the kernel sends the program SIGTERM when the thread that started it ends, so start it
    from the main thread.

    Args:
        programs: the stack on whose exit the program gets SIGTERM and is waited for, so that it can save.
        command: program and arguments.
        log: file to append its output to; None for the output of this process.
    """
    file, environment = None if log is None else programs.enter_context(log.open("a")), without_cluster(os.environ)
    with postponed():  # a signal between the start and the callbacks would leave the program running
        bound = [sys.executable, "-I", "-S", "-c", _ENDS_WITH, str(os.getpid()), *map(str, command)]
        process = subprocess.Popen(bound, env=environment, stdout=file, stderr=file, start_new_session=True)
        programs.callback(process.wait)
        programs.callback(process.terminate)
    return process
