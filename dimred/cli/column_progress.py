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


@contextmanager
def column_progress(n_snapshots: int) -> Iterator[Callable[[str, int, int], None]]:
    """A ``progress`` for ``fit_basis``: columns done are shown as bytes of the snapshots read.

    On a terminal a bar with rate and remaining time; elsewhere a line at the end of each pass.
    """
    columns = DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    is_terminal = sys.stderr.isatty()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, console=Console(stderr=True), disable=not is_terminal
    )
    passes: dict[str, tuple[TaskID, float, int]] = {}  # the bar's task, when it began, and at which column

    def report(phase: str, done: int, total: int) -> None:
        each = 4 * n_snapshots
        if phase not in passes or done < passes[phase][2]:
            passes[phase] = (bar.add_task(phase, total=total * each), time.monotonic(), done)
        task, started, first = passes[phase]
        bar.update(task, completed=done * each)
        if done == total and not is_terminal:
            seconds, size = max(time.monotonic() - started, 1e-9), (total - first) * each
            rate = size / seconds / 1e6
            note(f"{phase}: {size / 1e9:.2f} GB in {seconds:.1f} s ({rate:.0f} MB/s)")

    with bar:
        yield report
