"""MindSpore leaves a folder in the working directory, and prints at exit.

A graph that doesn't compile makes ``./rank_0/om``, unless a variable names another folder. When a process ends, each
cell's finaliser meets globals that are already gone, and prints a traceback. Seen in MindSpore 2.7.1 to 2.10. We know
of no report. ``tests/workarounds`` fails once a fault is gone.
"""

import atexit
import os
import sys
import tempfile
from pathlib import Path


def avoid_litter() -> None:
    """Move that folder below the system's temporary folder, and silence the finalisers at exit."""
    os.environ.setdefault("MS_OM_PATH", str(Path(tempfile.gettempdir(), f"dimred-{os.getuid()}")))
    atexit.register(_silence_cell_finalisers)


def _silence_cell_finalisers() -> None:
    mindspore = sys.modules.get("mindspore")
    if mindspore is not None:
        mindspore.nn.Cell.__del__ = lambda self: None
