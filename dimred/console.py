"""The programs' common options and output: log lines, a live bar in a terminal, and one clear line per error."""

import logging
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TextIO

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
from rich.table import Column, Table
from rich.text import Text

from dimred.errors import ConfigError, DimredError, FaultError, missing_package

_log = logging.getLogger("dimred")  # the packages' loggers are below it
_UsageError: Any = typer.BadParameter.__base__  # click's; newer versions of Typer have a copy of their own

# Arguments and options that several programs share.
Data = Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and val/<class>/.")]
Weights = Annotated[Path, typer.Argument(metavar="WEIGHTS", help="Stage 1's last full checkpoint.")]
DeviceTarget = Annotated[Literal["Ascend", "GPU", "CPU"], typer.Option(help="Kind of device to compute on.")]
DeviceTargetIfGiven = Annotated[
    Literal["Ascend", "GPU", "CPU"] | None,
    typer.Option(help="By default the first of these that is present."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set this key of the configuration.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out, if there is one.")]
FastDevRun = Annotated[bool, typer.Option("--fast-dev-run", help="Make one step and everything around it, as a trial.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def check_new_file(parameter: typer.CallbackParam, path: Path | None) -> Path | None:
    """Check, as a Typer callback, that an argument names a new file in a writable folder, and return its path.

    The path is None if the option was not given.
    """
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
    if path is not None and path.exists():
        raise ConfigError(f"{name} is {str(path)!r}, which exists already; name another file")
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise ConfigError(
            f"{name} is {str(path)!r}, in a folder that is missing or can't be written to; make it, or name another"
        )
    return path


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with one line per row, cut at the terminal's width, or at 240 characters without a terminal."""
    table = Table(*(Column(heading, no_wrap=True) for heading in headings), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 240, markup=False).print(table)


LONGEST_SILENCE_SECONDS = 30.0


class Lines(logging.Handler):
    """A handler that shows log records as plain lines; lines are lost if the disk is full or the terminal is gone.

    A record below INFO says what the program is about to do. It is shown on standard error once nothing else has been
    shown for 30 s, so that it explains a long silence without breaking a short one.

    Args:
        to_stdout: whether INFO goes to standard output, as the log of a training run does; otherwise it goes to
            standard error, apart from what a command prints. Warnings and errors always go to standard error, with
            their level in front.
    """

    def __init__(self, *, to_stdout: bool):
        super().__init__()
        self._to_stdout = to_stdout
        self._doing = ""
        self._silent_since = time.monotonic()
        self._has_ended = threading.Event()
        self._watch = threading.Thread(target=self._break_silence, daemon=True)

    def __enter__(self) -> "Lines":
        _log.setLevel(logging.DEBUG)
        _log.addHandler(self)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        _log.removeHandler(self)
        self._has_ended.set()
        self._watch.join()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record; keep a DEBUG record until a long silence."""
        text = self.format(record)
        if record.levelno < logging.INFO:
            self._doing = text
        elif record.levelno == logging.INFO:
            self._show(text, sys.stdout if self._to_stdout else sys.stderr)
        else:
            self._show(f"{record.levelname.lower()}: {text}", sys.stderr)

    def _show(self, text: str, stream: TextIO) -> None:
        with suppress(OSError):
            print(text, file=stream, flush=True)
        self._silent_since = time.monotonic()

    def _break_silence(self) -> None:
        while not self._has_ended.wait(max(0.01, self._silent_since + LONGEST_SILENCE_SECONDS - time.monotonic())):
            if time.monotonic() - self._silent_since >= LONGEST_SILENCE_SECONDS:
                if self._doing:
                    self._show(self._doing, sys.stderr)
                self._silent_since = time.monotonic()


class LiveBar(Progress):
    """A bar with steps, rate, status and time, shown between ``start`` and ``stop`` if there is a terminal."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            _Rate(),
            TextColumn("{task.fields[status]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            redirect_stdout=sys.stdout.isatty(),  # to keep lines above the bar
        )

    def show(self, name: str, total: int, done: int, status: str) -> None:
        """Show the bar ``name`` with ``done`` steps of ``total``, followed by a status."""
        if not self.task_ids:
            self.add_task(name, total=total, completed=done, status=status)
        self.update(self.task_ids[0], completed=done, status=status)


class _Rate(ProgressColumn):
    """A column that shows steps per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


def run_program(*programs: Callable[..., None], tell_refusal: Callable[[str], bool] = lambda reason: False) -> None:
    """Run a function as a program that logs to standard output, and exit; see ``run_command``.

    Args:
        programs: the function; or several, and the command line's first word names the one to run.
        tell_refusal: as in ``run_command``.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    for program in programs:
        app.command()(program)
    run_command(with_plain_help(typer.main.get_command(app)), tell_refusal, to_stdout=True)


def run_command(
    command: Any, tell_refusal: Callable[[str], bool] = lambda reason: False, *, to_stdout: bool = False
) -> NoReturn:
    """Run a Typer command and exit; a DimredError becomes one line on standard error, with its exit status.

    Any other error becomes one line too, with status 1. With ``show_tracebacks`` (``--debug``), tracebacks are printed.

    Args:
        command: the command, or the group of commands.
        tell_refusal: takes the text of an error about bad input; returns whether another process will print it.
        to_stdout: see ``Lines``.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by ``>&-``
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # a path may have characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    output = _Output()
    with Lines(to_stdout=to_stdout):
        status = _status(command, tell_refusal, output, to_stdout)
    output.drop_unwritten()
    sys.exit(status)


class _Output:
    """Standard output as it is at the start, because Rich redirects it to nowhere once a write has failed."""

    def __init__(self) -> None:
        self._poll = select.poll()
        with suppress(OSError):  # standard output may not be a file, for example in a test
            self._poll.register(os.dup(sys.stdout.fileno()), 0)  # 0: errors alone are reported

    def has_lost_its_reader(self) -> bool:
        """Return whether standard output is a pipe that nobody reads any more, as after ``head`` or a pager ends."""
        return bool(self._poll.poll(0))

    def drop_unwritten(self) -> None:
        """Flush standard output; if that fails, drop the rest, because Python would try again at exit and fail."""
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _status(command: Any, tell_refusal: Callable[[str], bool], output: _Output, to_stdout: bool) -> int:
    """Run the command, log any error, and return the exit status."""
    try:
        status = command(standalone_mode=False)
        if not to_stdout:
            sys.stdout.flush()  # log lines may be lost, but not the result that a command prints
    except KeyboardInterrupt:  # ctrl-C before Typer has begun the command; Typer itself returns the same status
        return 128 + signal.SIGINT
    except BrokenPipeError as error:
        return _status_of_pipe(error, output)
    except SystemExit as end:  # no command of ours raises it
        if isinstance(end.__context__, BrokenPipeError):  # Typer and Rich raise SystemExit in its place
            return _status_of_pipe(end.__context__, output)
        _log.error(
            f"your own code called sys.exit({end.code!r}), perhaps in a script that is imported for its network; "
            "call it only below: if __name__ == '__main__'"
        )
        return 1
    except Exception as error:
        return _status_of(error, tell_refusal)
    return status if isinstance(status, int) else 0


def _status_of_pipe(error: BrokenPipeError, output: _Output) -> int:
    """Return SIGPIPE's exit status if our own reader has gone; otherwise log the error from another pipe."""
    if output.has_lost_its_reader():
        return 128 + signal.SIGPIPE
    return _status_of(error, lambda reason: False)


def _status_of(error: Exception, tell_refusal: Callable[[str], bool]) -> int:
    """Log an error, and return the exit status that it stands for."""
    if isinstance(error, _UsageError):
        if type(error).__name__ == "NoArgsIsHelpError":  # it prints the help
            error.show()
        else:
            _log.error(_in_our_words(error))
        return DimredError.exit_status
    if _tracebacks:
        traceback.print_exception(error)
    reason = missing_package(error) or error
    if isinstance(reason, OSError) and reason.filename is not None:  # a disk failed or is full
        reason = FaultError(f"{reason.filename}: {reason.strerror}; remove the cause, and run the same command again")
    if not isinstance(reason, DimredError):
        _log.error(f"{type(reason).__name__}: {reason} (dimred --debug COMMAND shows where)")
        return 1
    if reason.exit_status != DimredError.exit_status or not tell_refusal(str(reason)):
        _log.error(str(reason))
    return reason.exit_status


def plain_help(command: Any) -> Any:
    """Make a command's help wrap paragraphs to the terminal's width, and show flags as typed; return the command.

    Typer keeps a docstring's line breaks, and shows ``<bool>`` behind a flag.
    """
    if command.help:
        command.help = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
    for parameter in command.get_params(command.context_class(command)):  # --help among them
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return command


def with_plain_help(command: Any) -> Any:
    """Apply ``plain_help`` to a command and all commands below it, and return the command."""
    for subcommand in getattr(command, "commands", {}).values():
        with_plain_help(subcommand)
    return plain_help(command)


def _in_our_words(error: Any) -> str:
    """Describe a wrong call: the argument as typed, its value, what is allowed, and what to do."""
    parameter = getattr(error, "param", None)
    problem = error.__cause__
    text = error.format_message().rstrip(".")
    if isinstance(problem, ValidationError) and parameter is not None:
        (first, *_) = problem.errors()
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar.strip("[]")
        said = first["msg"].replace("Input should be", "it must be").removeprefix("Value error, ").rstrip(".")
        choices = re.fullmatch(r"'.*' is not one of (.*)", said)
        allowed = f"allowed: {choices[1]}" if choices else said.partition(", unable to parse")[0]
        text = f"{name} is {str(first['input'])!r}; {allowed}"
    return f"{text} (see {error.ctx.command_path} --help)" if error.ctx else text


def show_tracebacks(wanted: bool) -> None:
    """Set whether ``run_command`` prints tracebacks."""
    global _tracebacks
    _tracebacks = wanted


_tracebacks = False
