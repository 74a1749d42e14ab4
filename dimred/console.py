"""What a program shows: one line an epoch, a live bar in a terminal, one clear line for an error."""

import sys
import traceback
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dimred.errors import DimredError

EXIT_UNEXPECTED = 1

# Options of both stages.
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")]
AllowChange = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="With --resume: this key may differ from before.")
]


def progress_bar() -> Progress:
    """A live bar on a terminal's standard error: steps, rate, status, time; silent elsewhere, where log lines speak."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        _Rate(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        redirect_stdout=sys.stdout.isatty(),  # lines go above the bar; to a file they go as ever
    )


class _Rate(ProgressColumn):
    """Steps in a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


def say(text: str) -> None:
    """A line of the log, at once."""
    print(text, flush=True)


def run_program(program: Callable[..., None]) -> None:
    """Run a function as a command line program; see ``run_app``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(program)
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Run the commands; an error of ours becomes a line on standard error, and its own exit status.

    An error that is nobody's intention becomes one line too, with status 1. After ``show_tracebacks`` (``--debug``)
    both show where they arose.
    """
    try:
        app()
    except DimredError as error:
        _show_traceback()
        fail(error)
    except Exception as error:
        _show_traceback()
        print(f"error: {type(error).__name__}: {error} (dimred --debug COMMAND shows where)", file=sys.stderr)
        sys.exit(EXIT_UNEXPECTED)


def show_tracebacks(wanted: bool) -> None:
    """Whether ``run_app`` shows where an error arose."""
    global _tracebacks
    _tracebacks = wanted


_tracebacks = False


def _show_traceback() -> None:
    if _tracebacks:
        traceback.print_exc()


def fail(error: DimredError) -> NoReturn:
    """Print the error and exit with its status."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_status)
