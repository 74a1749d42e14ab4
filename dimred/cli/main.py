"""``dimred``: the commands. None of them loads MindSpore before it needs it."""

from importlib import metadata
from typing import Annotated

import typer

from dimred import __version__
from dimred.cli.compare import compare
from dimred.cli.data import data
from dimred.cli.init import init
from dimred.cli.merge import merge
from dimred.cli.networks import average, evaluate, rebuild, summary
from dimred.cli.pca import pca
from dimred.cli.show import report, show
from dimred.cli.train import rank_table, train
from dimred.console import run_app, show_tracebacks

typer_app = typer.Typer(
    help="""Two-stage dimension-reduction training on MindSpore.

    Stage 1 trains and keeps snapshots. Stage 2 makes the best network of them: by averages, a cooldown, or a search in
    the directions that a PCA of them gives.

    Exit status: 0 done; 1 a check said no (show --checkpoint, data check), or an error that nobody foresaw; 2 wrong
    input, nothing changed; 3 a run that had begun met a fault; 128 + n ended by signal n (130 ctrl-C, 143 SIGTERM).
    train ends with the status of the first rank that failed.

    Example: dimred train stage-1 ./imagenet, then dimred pca --ckpt-dir ..., then dimred train stage-2 ...
    """,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dimred {__version__}, mindspore {metadata.version('mindspore')}")
        raise typer.Exit


@typer_app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="On an error, show where in the program it arose.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the versions.")
    ] = False,
) -> None:
    """Options of every command."""
    show_tracebacks(debug)


for group, name in ((data, "data"), (rank_table, "rank-table")):
    typer_app.add_typer(group, name=name)
for command in (init, train, pca, show, average, merge, compare, report, summary, rebuild):
    typer_app.command()(command)
typer_app.command("eval")(evaluate)


def app() -> None:
    """The ``dimred`` entry point; see ``run_app``."""
    run_app(typer_app)
