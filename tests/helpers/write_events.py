"""Number the changes that a process makes on disk below a folder, and act at one of them.

An event is: opening a file to write, renaming, removing, truncating, making or removing a folder, and, wherever the
file is, flushing a file to the disk, which is one event before and one after it.

python -m tests.helpers.write_events EVENT DELAY SIGNAL COUNT_FILE PROGRAM [ARGUMENTS ...]

runs a program, and sends it the signal DELAY seconds after the event number EVENT below the parent of ``--out``: from a
thread, or at once if DELAY is 0.
"""

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CHANGES = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

_watched: list["WriteEvents"] = []


class WriteEvents:
    """Count the events below a folder.

    Args:
        below: part of the paths that count.
        act: called with the number of each event, from 1; what it raises, the event raises.

    Attributes:
        seen: events so far.
    """

    def __init__(self, below: str, act: Callable[[int], object]):
        self.below, self.act = below, act
        self.seen = 0
        self._lock = threading.Lock()

    def happened(self) -> None:
        with self._lock:
            self.seen += 1
            number = self.seen
        self.act(number)

    @contextmanager
    def watched(self) -> Iterator["WriteEvents"]:
        """Count, and act, while the block lasts."""
        _watched.append(self)
        try:
            yield self
        finally:
            _watched.remove(self)


def _audit(name: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    opened = name == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
    if opened or name in _CHANGES:
        for events in list(_watched):
            if isinstance(arguments[0], int) or events.below in os.fsdecode(arguments[0]):
                events.happened()


def _counted(function: Callable[[int], None]) -> Callable[[int], None]:
    def call(descriptor: int) -> None:
        for events in list(_watched):
            events.happened()
        function(descriptor)
        for events in list(_watched):
            events.happened()

    return call


for _name in ("fsync", "fdatasync"):
    if hasattr(os, _name):
        setattr(os, _name, _counted(getattr(os, _name)))
sys.addaudithook(_audit)


def main() -> None:
    """Run the program, and write the number of its events to COUNT_FILE when it ends by itself."""
    event, delay, name, count_file, program, *arguments = sys.argv[1:]

    def send() -> None:
        time.sleep(float(delay))
        os.kill(os.getpid(), getattr(signal, name))

    def act(number: int) -> None:
        if number == int(event):
            threading.Thread(target=send, daemon=True).start() if float(delay) else send()

    sys.argv = [program, *arguments]
    events = WriteEvents(str(Path(arguments[arguments.index("--out") + 1]).parent), act)
    try:
        with events.watched():
            if program == "dimred":
                from dimred.cli.main import app

                app()
            else:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        Path(count_file).write_text(str(events.seen))


if __name__ == "__main__":
    main()
