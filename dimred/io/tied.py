"""Turn into a program that gets a signal when the process that started it ends; see ``start_tied`` in ``system.py``.

``python -I -S tied.py PARENT LIFELINE SIGNAL IGNORED PROGRAM ARGUMENTS...`` runs without the rest of dimred. Code
between fork and exec could do the same, but might deadlock on a lock that a thread of MindSpore held.
"""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1  # defined in linux/prctl.h
_SECONDS_BETWEEN_LOOKS = 0.5


def main(parent: str, lifeline: str, number: str, ignored: str, *command: str) -> None:
    """Tie this process to its parent, and become the program.

    Args:
        parent: process id of the parent.
        lifeline: the descriptor of a pipe whose other end the parent alone holds; -1 where the kernel sends the signal.
        number: the signal.
        ignored: signals to ignore, separated by commas.
        command: the program and its arguments.
    """
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):  # the program would ignore them, too
        signal.signal(ignored_by_python, signal.SIG_DFL)
    for text in filter(None, ignored.split(",")):
        signal.signal(int(text), signal.SIG_IGN)
    if int(lifeline) < 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    else:
        os.set_inheritable(int(lifeline), False)
        _start_watcher(int(lifeline), int(number))
    if os.getppid() != int(parent):  # it ended before it could be watched
        sys.exit(1)
    os.execvp(command[0], command)


def _start_watcher(lifeline: int, number: int) -> None:
    """Fork a process that signals this one's group at the end of the lifeline, and ends with this process."""
    program = os.getpid()
    if os.fork():
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    while os.getppid() == program:
        has_ended, _, _ = select.select([lifeline], [], [], _SECONDS_BETWEEN_LOOKS)
        if has_ended:
            os.killpg(program, number)
            break
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
