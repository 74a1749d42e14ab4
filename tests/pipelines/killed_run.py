"""Run a program, and end it with a signal at a chosen moment of its writing.

python -m tests.pipelines.killed_run EVENT DELAY SIGNAL COUNT_FILE PROGRAM [ARGUMENTS ...]

Whatever changes the disk below ``--out`` is an event: opening a file to write, flushing it, renaming, removing,
truncating, making a folder. The signal comes DELAY seconds after event number EVENT, from a thread, or at once for 0;
events are numbered from 1. The number of events is written to COUNT_FILE when the program ends by itself.
"""

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

_CHANGES = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Events:
    """Counts the events, and sends the signal."""

    def __init__(self, event: int, delay: float, number: int, below: str):
        self.event, self.delay, self.number, self.below = event, delay, number, below
        self.seen = 0

    def audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        opened = name == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if (opened or name in _CHANGES) and (isinstance(arguments[0], int) or self.below in os.fsdecode(arguments[0])):
            self.happened()

    def happened(self) -> None:
        self.seen += 1
        if self.seen == self.event:
            if self.delay == 0:
                os.kill(os.getpid(), self.number)
            else:
                threading.Thread(target=self._later, daemon=True).start()

    def _later(self) -> None:
        time.sleep(self.delay)
        os.kill(os.getpid(), self.number)


def main() -> None:
    event, delay, name, count_file, program, *arguments = sys.argv[1:]
    below = arguments[arguments.index("--out") + 1]
    events = Events(int(event), float(delay), getattr(signal, name), str(Path(below).parent))
    for function in ("fsync", "fdatasync"):
        setattr(os, function, _counted(getattr(os, function), events))
    sys.addaudithook(events.audit)
    sys.argv = [program, *arguments]
    try:
        if program == "dimred":
            from dimred.cli.main import app

            app()
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        events.event = 0
        Path(count_file).write_text(str(events.seen))


def _counted(function: Any, events: Events) -> Any:
    def call(descriptor: int) -> None:
        events.happened()
        function(descriptor)
        events.happened()

    return call


if __name__ == "__main__":
    main()
