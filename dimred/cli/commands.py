"""The commands of ``dimred``. A command's module is imported when the command is called."""

from functools import cache
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dimred import __version__
from dimred.console import plain_help, show_tracebacks, with_plain_help

# Help panel -> command -> its module in ``dimred.cli`` and its name there.
_PANELS = {
    "Train in two stages, and show the result": {
        "train": "train.train",
        "pca": "pca.pca",
        "eval": "measure.evaluate",
        "report": "measure.report",
        "compare": "measure.compare",
    },
    "Make files from checkpoints, and show what is in a basis": {
        "merge": "merge.merge",
        "convert": "convert.convert",
        "show": "show.show",
    },
    "Set up a run, and check and measure this machine": {
        "init": "init.init",
        "data": "data.data",
        "summary": "measure.summary",
        "doctor": "machine.doctor",
        "bench": "machine.bench",
        "rank-table": "rank_table.rank_table",
    },
}
_PANEL_OF = {name: panel for panel, commands in _PANELS.items() for name in commands}


@cache
def _command(name: str) -> Any:
    """Import a command's module, and make the command."""
    panel = _PANEL_OF[name]
    module, _, attribute = _PANELS[panel][name].partition(".")
    command = getattr(import_module(f"dimred.cli.{module}"), attribute)
    parent = typer.Typer()
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name, rich_help_panel=panel)
    else:
        parent.command(name, rich_help_panel=panel)(command)
    return with_plain_help(typer.main.get_group(parent).commands[name])


class _Group(TyperGroup):
    """The group of all commands. It knows their names, and imports a command only on request."""

    commands: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(_PANEL_OF)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name; None if there is none."""
        return _command(cmd_name) if cmd_name in _PANEL_OF else None


typer_app = typer.Typer(
    cls=_Group,
    help="""Two-stage dimension-reduction training on MindSpore.

    Stage 1 trains a network and keeps snapshots of its weights. Stage 2 continues from stage 1's last weights: it
    searches in the directions that a PCA of the snapshots finds, or lowers the learning rate to 0, as a cooldown.

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


command_line = plain_help(typer.main.get_command(typer_app))
"""The whole command line."""
