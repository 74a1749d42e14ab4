"""What a program shows: plain lines, a live bar in a terminal, one clear line for an error."""

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer
from pydantic import ValidationError
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

from dimred.errors import ConfigError, DimredError

_UsageError: Any = typer.BadParameter.__base__  # Typer has its own since 0.20, before that click's

# Arguments and options that several programs have.
Data = Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and val/<class>/ images.")]
Weights = Annotated[Path, typer.Argument(metavar="WEIGHTS", help="Stage 1's last full checkpoint.")]
DeviceTarget = Annotated[Literal["Ascend", "CPU"], typer.Option(help="What to compute on.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="key=value, over the configuration.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")]
AllowChange = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="With --resume: this key may differ from before.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def check_new_file(parameter: typer.CallbackParam, path: Path | None) -> Path | None:
    """The callback of an argument or option that names a file to write: it is new, and its folder can be written to."""
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
    if path is not None and path.exists():
        raise ConfigError(f"{name} is {str(path)!r}, which exists already; name another file")
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise ConfigError(f"{name} is {str(path)!r}, in a folder that is missing or can't be written to; make it first")
    return path


def check_there(parameter: typer.CallbackParam, path: Path | None) -> Path | None:
    """The callback of an argument or option that names a file or folder to read."""
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
    if path is not None and not path.exists():
        raise ConfigError(f"{name} is {str(path)!r}, which is not found")
    return path


def check_file(parameter: typer.CallbackParam, path: Path | None) -> Path | None:
    """The same of an argument or option that names a file."""
    check_there(parameter, path)
    if path is not None and path.is_dir():
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        raise ConfigError(f"{name} is {str(path)!r}, which is a folder; name a file")
    return path


def say(text: str) -> None:
    """Print a line of the log at once."""
    _print(text, sys.stdout)


def note(text: str) -> None:
    """Print a line on standard error at once, beside what a command gives on standard output."""
    _print(text, sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    with suppress(OSError):  # a run does not end for a line that a full disk or a gone terminal does not take
        print(text, file=stream, flush=True)
    _silence.began = time.monotonic()


_LONGEST_SILENCE = 30  # seconds


class _Silence:
    """Since when nothing has been printed, and what the program does."""

    began, doing = 0.0, ""


_silence = _Silence()


def doing(what: str) -> None:
    """Tell ``heartbeat`` what begins, or how far it is; "" where a bar shows it."""
    _silence.doing = what


@contextmanager
def heartbeat(what: str) -> Iterator[None]:
    """Inside the block, note what the program is ``doing`` wherever nothing has been printed for 30 s."""
    has_ended = threading.Event()

    def beat() -> None:
        while not has_ended.wait(max(0.0, _silence.began + _LONGEST_SILENCE - time.monotonic())):
            if time.monotonic() - _silence.began < _LONGEST_SILENCE:
                continue
            if _silence.doing:
                note(_silence.doing)
            _silence.began = time.monotonic()

    doing(what)
    _silence.began = time.monotonic()
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


class LiveBar(Progress):
    """Steps, rate, status and time on a terminal's standard error, between ``start`` and ``stop``; silent elsewhere."""

    def __init__(self) -> None:
        super().__init__(
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

    def show(self, name: str, total: int, done: int, status: str) -> None:
        """Show ``done`` steps of ``total``, and what was measured last."""
        if not self.task_ids:
            self.add_task(name, total=total, completed=done, status=status)
        self.update(self.task_ids[0], completed=done, status=status)


class _Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


def run_program(program: Callable[..., None], tell_refusal: Callable[[str], bool] = lambda why: False) -> None:
    """Run a function as a command line program; see ``run_app``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(program)
    run_app(app, tell_refusal)


def run_app(app: typer.Typer, tell_refusal: Callable[[str], bool] = lambda why: False) -> None:
    """Run the commands; an error of ours becomes a line on standard error, with its own exit status.

    An error that nobody intended becomes one line too, with status 1. After ``show_tracebacks`` (``--debug``) both show
    where they arose.

    Args:
        app: the commands.
        tell_refusal: takes the text of an error that means bad input; true where somebody else will print it.
    """
    try:
        status = app(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # it prints the help
            error.show()
        else:
            note(f"error: {_in_our_words(error)}")
        sys.exit(DimredError.exit_status)
    except Exception as error:
        if _tracebacks:
            traceback.print_exc()
        if not isinstance(error, DimredError):
            note(f"error: {type(error).__name__}: {error} (dimred --debug COMMAND shows where)")
            sys.exit(1)
        if error.exit_status != DimredError.exit_status or not tell_refusal(str(error)):
            note(f"error: {error}")
        sys.exit(error.exit_status)


def _in_our_words(error: Any) -> str:
    """What Typer and pydantic say of a wrong call: the argument as typed, its value, what is allowed, what to do."""
    parameter, problem = getattr(error, "param", None), error.__cause__
    text = error.format_message().rstrip(".")
    if isinstance(problem, ValidationError) and parameter is not None:
        (first, *_) = problem.errors()
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar.strip("[]")
        limits = first.get("ctx", {})
        allowed = {
            "greater_than_equal": f"it must be at least {limits.get('ge')}",
            "less_than_equal": f"it must be at most {limits.get('le')}",
            "int_parsing": "it must be a whole number",
            "float_parsing": "it must be a number",
        }.get(first["type"], first["msg"].removeprefix("Value error, ").rstrip("."))
        choices = re.fullmatch(r"'.*' is not one of (.*)", allowed)
        text = f"{name} is {str(first['input'])!r}; " + (f"allowed: {choices[1]}" if choices else allowed)
    return f"{text} (see {error.ctx.command_path} --help)" if error.ctx else text


def show_tracebacks(wanted: bool) -> None:
    """Whether ``run_app`` shows where an error arose."""
    global _tracebacks
    _tracebacks = wanted


_tracebacks = False
