"""Gets a signal while it writes the result of a merge: ``python merge_and_die.py SIGNAL RUN OUT``."""

import os
import signal
import sys

from dimred.cli.main import app

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
reserve, number = os.posix_fallocate, int(sys.argv[1])


def reserve_and_die(*arguments):
    reserve(*arguments)
    os.kill(os.getpid(), number)


os.posix_fallocate = reserve_and_die
sys.argv = ["dimred", "merge", sys.argv[2], "--out", sys.argv[3]]
app()
