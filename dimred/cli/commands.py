"""The commands of ``dimred``. None loads MindSpore before it needs it."""

from importlib import metadata
from typing import Annotated

import typer

from dimred import __version__
from dimred.cli.convert import convert
from dimred.cli.init import data, init
from dimred.cli.machine import bench, doctor
from dimred.cli.measure import compare, evaluate, report, summary
from dimred.cli.snapshots import merge, pca, show
from dimred.cli.train import rank_table, train
from dimred.console import show_tracebacks

typer_app = typer.Typer(
    help="""Two-stage dimension-reduction training on MindSpore.

    Stage 1 trains and keeps snapshots. Stage 2 goes on from there: by a search in the directions that their PCA gives,
    or by a cooldown of the learning rate.

    Exit status: 0 done; 1 a check failed (doctor, show --checkpoint, data check), or an unforeseen error; 2
    wrong input, nothing changed; 3 a run that had begun met a fault; 4 its training diverged; 128 + n ended by
    signal n (130 ctrl-C, 143 SIGTERM). train ends with the status of the first rank that failed.

    Example: dimred train stage-1 ./imagenet, then dimred pca --ckpt-dir ..., then dimred train stage-2 ...
    """,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        try:
            trains_with = f"mindspore {metadata.version('mindspore')}"
        except metadata.PackageNotFoundError:
            trains_with = "no mindspore"
        print(f"dimred {__version__}, {trains_with}")
        raise typer.Exit


@typer_app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the versions.")
    ] = False,
) -> None:
    """Handle the options that all commands share."""
    show_tracebacks(debug)


for group, name in ((data, "data"), (rank_table, "rank-table")):
    typer_app.add_typer(group, name=name)
for command in (init, train, pca, show, merge, convert, compare, report, summary, doctor, bench):
    typer_app.command()(command)
typer_app.command("eval")(evaluate)
