"""``dimred compare`` and ``dimred report``: compare stage 2 with its rivals, and make the page of a run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dimred.console import AsJson, Overrides
from dimred.errors import ConfigError, StoppedError


def compare(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Folder with train/, val/ and test/; {seed} stands for a run's seed.")
    ],
    config: Annotated[Path, typer.Option(help="Stage 2's YAML file, or a recipe such as digits.")],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished stage 1 runs, one a seed.")],
    out: Annotated[Path, typer.Option(help="Folder for the results; rows of an earlier call are kept.")] = Path(
        "comparison"
    ),
    methods: Annotated[
        str | None, typer.Option(help="Only these, such as last,average,stage_2; a wrong name lists all.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Epochs at which to take stage 1 as ended, such as 20,30; by default its last."),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare stage 2 with averages of the same snapshots and with plain training, from the same stage 1.

    The missing controls are trained here. The val split chooses, the test split reports, BatchNorm is re-estimated in
    every row. With a search in the configuration there is a row for it, and the others get as many passes. A call that
    was cut off is continued by the same call. Prints a table, or with --json the contents of OUT/compare.json;
    OUT/compare.html is the page, with test accuracy over passes.

    Example: dimred compare ./digits device0_stage_1 --config digits
    """
    chosen = None if methods is None else [name.strip() for name in methods.split(",")]
    try:
        epochs = [int(epoch) for epoch in at.split(",")] if at else []
    except ValueError:
        raise ConfigError(f"--at is {at!r}; give whole numbers with commas between, such as 20,30,45") from None
    from dimred.comparison.compare import compare as make_comparison
    from dimred.comparison.summary import markdown
    from dimred.launch.channel import StopSignals

    try:
        with StopSignals():
            summary = make_comparison(data, runs, config, out, methods=chosen, at=epochs, overrides=overrides or [])
    except StoppedError as stop:
        raise StoppedError(stop.number, f"what is finished is in {out}; the same command goes on") from None
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    print(markdown(summary))
    print(f"{out / 'compare.md'}, {out / 'compare.json'}, {out / 'compare.html'}")


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished stage 2, or of a stage 1.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the page, may have an earlier one; default RUN/report."),
    ] = None,
    grid: Annotated[int, typer.Option(min=2, help="Points along each side of the loss surface.")] = 11,
    batches: Annotated[int, typer.Option(min=1, help="Training batches that each of its points is evaluated on.")] = 2,
) -> None:
    """Make one page of a run: report.html, without network or script, and each picture as PNG and SVG.

    It has curves, spectrum, the path of both stages over the true loss surface, and each step of a search. For a
    stage 1, finished or not, it has the curves, and the spectrum of the snapshots.

    Example: dimred report device0_stage_2
    """
    if not run.is_dir():
        raise ConfigError(f"RUN is {str(run)!r}, which is not a folder; give the folder of a stage 1 or stage 2 run")
    from dimred.pipelines.report import report as make_report

    print(f"report: {make_report(run, out or run / 'report', grid, batches)}")
