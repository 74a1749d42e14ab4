"""``dimred``: the commands. None of them loads MindSpore before it needs it."""

import typer

from dimred.cli.data import data
from dimred.cli.pca import pca
from dimred.cli.rebuild import rebuild
from dimred.cli.show import show
from dimred.runtime.console import run_app

typer_app = typer.Typer(
    help="Two-stage dimension-reduction training on MindSpore.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
typer_app.add_typer(data, name="data")
typer_app.command()(pca)
typer_app.command()(show)
typer_app.command()(rebuild)


def app() -> None:
    """The ``dimred`` entry point; an error of ours is one line and exit status 2."""
    run_app(typer_app)
