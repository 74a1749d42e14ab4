"""How far a pass over the columns is: a live bar with rate and remaining time, or one line for each finished pass."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from dimred.console import note

__all__ = ["column_progress"]


@contextmanager
def column_progress(n_snapshots: int) -> Iterator[Callable[[str, int, int], None]]:
    """A ``progress`` for ``fit_basis``: columns done are shown as bytes of the snapshots read.

    On a terminal a bar with rate and remaining time; elsewhere a line at the end of each pass.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    tasks: dict[str, TaskID] = {}
    started: dict[str, tuple[float, int]] = {}

    def report(phase: str, done: int, total: int) -> None:
        each = 4 * n_snapshots
        if phase not in tasks or done < started[phase][1]:
            tasks[phase] = bar.add_task(phase, total=total * each)
            started[phase] = (time.monotonic(), done)
        bar.update(tasks[phase], completed=done * each)
        if done == total and bar.disable:
            seconds = max(time.monotonic() - started[phase][0], 1e-9)
            size = (total - started[phase][1]) * each
            note(f"{phase}: {size / 1e9:.2f} GB in {seconds:.1f} s ({size / seconds / 1e6:.0f} MB/s)")

    with bar:
        yield report
