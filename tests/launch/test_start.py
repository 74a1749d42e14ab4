"""A program that is no rank never outlives the process that started it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import nothing_is_left, soon

_STARTER = """
import sys
from contextlib import ExitStack
from dimred.launch.programs import start
with ExitStack() as running:
    program = "import sys, time; print('began', flush=True); time.sleep(60)"
    start(running, [sys.executable, "-c", program, sys.argv[1]]).wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_program_ends_with_the_process_that_started_it_and_handles_no_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    """A script that calls ``dimred.compare`` has no handlers, MindSpore replaces those of a command, and none is called
    when memory runs out."""
    with subprocess.Popen([sys.executable, "-c", _STARTER, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        assert not nothing_is_left(tmp_path)
        process.send_signal(number)
        assert process.wait() == -number
        assert soon(lambda: nothing_is_left(tmp_path))
