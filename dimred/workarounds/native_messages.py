"""MindSpore's native code prints to standard error, whatever Python does with its own messages.

On a terminal its lines would spoil a progress bar. Seen in MindSpore 2.7.1 to 2.10, whose logger is glog; no setting
sends errors only to a file. ``tests/workarounds`` fails once nothing is printed.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def redirect_native_stderr(path: Path) -> Iterator[None]:
    """Append what native code prints to standard error to ``path``; Python's ``sys.stderr`` stays on the terminal."""
    sys.stderr.flush()
    terminal = os.dup(2)
    before = sys.stderr
    with path.open("ab") as log, os.fdopen(terminal, "w", buffering=1, encoding=before.encoding) as stream:
        os.dup2(log.fileno(), 2)
        sys.stderr = stream
        try:
            yield
        finally:
            sys.stderr = before
            os.dup2(terminal, 2)
