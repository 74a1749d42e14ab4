"""The commands of ``dimred``. None loads MindSpore before it needs it."""

from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dimred import __version__
from dimred.cli.convert import convert
from dimred.cli.init import data, init
from dimred.cli.machine import bench, doctor
from dimred.cli.measure import compare, evaluate, report, summary
from dimred.cli.snapshots import merge, pca, show
from dimred.cli.train import rank_table, train
from dimred.console import show_tracebacks

_PANELS: dict[str, dict[str, Any]] = {
    "The main way: these train in two stages and show the result": {
        "train": train, "pca": pca, "eval": evaluate, "report": report, "compare": compare,
    },
    "These make files out of checkpoints, and show what is in a basis": {
        "merge": merge, "convert": convert, "show": show,
    },
    "These set up a run, and check and measure this machine": {
        "init": init, "data": data, "summary": summary, "doctor": doctor, "bench": bench, "rank-table": rank_table,
    },
}  # fmt: skip


class _Commands(TyperGroup):
    """A group that lists its commands in the order of the panels; Typer lists those with subcommands last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names."""
        return [name for commands in _PANELS.values() for name in commands]


typer_app = typer.Typer(
    cls=_Commands,
    help="""Two-stage dimension-reduction training on MindSpore.

    Stage 1 trains a network and keeps snapshots of its weights. Stage 2 goes on from its last weights: by a search in
    the directions that a PCA of the snapshots gives, or by a cooldown of the learning rate.

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


for panel, commands in _PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            typer_app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            typer_app.command(name, rich_help_panel=panel)(command)
