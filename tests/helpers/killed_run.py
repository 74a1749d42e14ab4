"""Run a program, and end it with a signal at a chosen moment of its writing.

python -m tests.helpers.killed_run EVENT DELAY SIGNAL COUNT_FILE PROGRAM [ARGUMENTS ...]

The signal comes DELAY seconds after the write event number EVENT below ``--out``, from a thread, or at once for 0. The
number of events is written to COUNT_FILE when the program ends by itself.
"""

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from tests.helpers.write_events import WriteEvents


def main() -> None:
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
