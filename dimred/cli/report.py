"""``dimred report``: show a run on one page."""

from pathlib import Path
from typing import Annotated

import typer

from dimred.console import check_there
from dimred.errors import ConfigError


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished stage 2, or of a stage 1.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and pictures; an earlier report there is replaced. RUN/report.")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="compare.json of dimred compare, to be shown too.", callback=check_there),
    ] = None,
    grid: Annotated[int, typer.Option(min=2, help="Points along each side of the loss surface.")] = 11,
    batches: Annotated[int, typer.Option(min=1, help="Training batches that each of its points is evaluated on.")] = 2,
) -> None:
    """Make one page of a run: report.html, without network or script, and each picture as PNG and SVG.

    Curves, spectrum, the path of both stages over the true loss surface, the search step by step, the comparison. Of a
    stage 1 alone, while it runs or after it: its curves, and the spectrum of its snapshots.

    Example: dimred report device0_stage_2 --compare comparison/compare.json
    """
    if not run.is_dir():
        raise ConfigError(f"RUN is {str(run)!r}, which is not a folder; give the folder of a stage 1 or stage 2 run")
    from dimred.pipelines.report import report as make_report

    print(f"report: {make_report(run, out or run / 'report', compare, grid, batches)}")
