"""In a terminal, what MindSpore's own code prints on standard error goes to a file, where it spoils no progress bar."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def redirect_native_stderr(path: Path) -> Iterator[None]:
    """While it is open, file descriptor 2 is ``path``; Python's ``sys.stderr`` stays the terminal.

    Nothing happens where standard error is no terminal: there it is in a log file already.
    """
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.flush()
    terminal, before = os.dup(2), sys.stderr
    with path.open("ab") as log, os.fdopen(terminal, "w", buffering=1, encoding=before.encoding) as shown:
        os.dup2(log.fileno(), 2)
        sys.stderr = shown
        try:
            yield
        finally:
            sys.stderr = before
            os.dup2(terminal, 2)
