"""What a program shows: one line an epoch, a live bar in a terminal, one clear line for an error."""

import sys
from collections.abc import Callable
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dimred.errors import DimredError

EXIT_BAD_INPUT = 2


def progress_bar() -> Progress:
    """A live bar on a terminal's standard error; silent elsewhere, where the log lines speak."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )


def run_program(program: Callable[..., None]) -> None:
    """Run a function as a command line program; see ``run_app``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(program)
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Run the commands; an error of ours becomes one line on standard error and exit status 2."""
    try:
        app()
    except DimredError as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    """Print the error and exit with status 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT)
