"""The errors of dimred.

Every message names the argument as the user typed it, the value received, what is allowed, and what to do next.
"""

import math
import reprlib
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

DISTRIBUTION = "dimred-mindspore"
"""The name of this package in an index, where ``dimred`` is another project."""


class DimredError(Exception):
    """Base of all errors that dimred raises on purpose; programs print them without a traceback.

    A message is written for a Python program. The fields tell the command line which of its words to replace.

    Args:
        message: what is wrong, and what to do. The middle of a message longer than ``LONGEST`` characters is left out,
            because it may quote a file.
        remedy: what to do, where it is also shown apart from what is wrong; the message then ends with it.
        argument: the name of the argument that is wrong, if there is one; the message begins with it.
        settings: other arguments in the message, each as it is written there, such as ``overwrite=True``.
    """

    LONGEST = 4_000
    exit_status = 2  # of a program whose input is wrong

    def __init__(
        self, message: str = "", *, remedy: str = "", argument: str = "", settings: Sequence[str] = ()
    ) -> None:
        self.problem = message
        self.remedy = remedy
        if remedy:
            message = f"{message}; {remedy}"
        if len(message) > self.LONGEST:
            half = self.LONGEST // 2
            message = f"{message[:half]} [... {len(message) - 2 * half:,} characters ...] {message[-half:]}"
        super().__init__(message)
        self.argument = argument
        self.settings = tuple(settings)


class ConfigError(DimredError, ValueError):
    """An argument, option or configuration key has a value that is not allowed."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Return each thing that is wrong: a single one unless the error says that it has several."""
        return (str(self),)


class ProblemsError(ConfigError):
    """Several configuration keys are wrong; the message has a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self._problems = tuple(problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return a message about each key."""
        return self._problems


class DataError(DimredError):
    """A data folder, dataset or label is missing, empty, or not valid."""


class CheckpointError(DimredError):
    """A checkpoint file is missing, truncated, damaged, or not a checkpoint."""


class SeriesError(DimredError):
    """A series can't be used as asked: it has no or too few snapshots, or they do not belong together."""


class BasisMismatchError(DimredError):
    """A basis is missing, damaged, or does not fit the network or data; or a layout is not valid."""


class RunError(DimredError):
    """The folder of a run can't be used, or its run can't be resumed as asked."""


class FaultError(DimredError):
    """A run had to end: a disk, a file, data or memory failed, or training diverged. What it saved is kept."""

    exit_status = 3


class DivergedError(FaultError):
    """Training diverged, and resuming from its last state would repeat that."""

    exit_status = 4  # so that the caller of a training can tell divergence from a full disk


class StoppedError(DimredError):
    """Signal n, such as SIGTERM, ended a run: exit status 128 + n.

    Args:
        number: n.
        saved: what is kept.
        by_launcher: whether the launcher sent n. It sends SIGTERM whatever signal it received, and has said which.
        settings: as for ``DimredError``.
    """

    def __init__(self, number: int, saved: str = "", *, by_launcher: bool = False, settings: Sequence[str] = ()):
        name = "ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        stopped = "stopped" if by_launcher else f"stopped by {name}"
        super().__init__(stopped + (f"; {saved}" if saved else ""), settings=settings)
        self.number = number
        self.exit_status = 128 + number


class NothingToGainError(DimredError):
    """More steps would gain nothing; a stage 2 ends with what it has reached."""


class SearchError(DimredError):
    """A search can't continue."""


class NothingAcceptedError(SearchError, NothingToGainError):
    """No step of a search was accepted for too long."""


class MissingPackageError(DimredError, ImportError):
    """A package of the extra ``train`` is needed but not installed."""

    def __init__(self, package: str):
        super().__init__(
            f"this needs the Python package {package}, which is not installed",
            remedy=f"install what training needs with python -m pip install '{DISTRIBUTION}[train]'",
        )


TRAINING_PACKAGES = ("mindspore", "scipy", "sklearn", "tensorboardX", "PIL")


def missing_package(error: BaseException) -> MissingPackageError | None:
    """Return the error to show if a missing package of the extra ``train`` caused this one; otherwise None."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return MissingPackageError(name) if name in TRAINING_PACKAGES else None


Result = TypeVar("Result")


class Problems:
    """The problems that several checks find, to be reported in one error."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def collect(self, check: Callable[[], Result]) -> Result | None:
        """Run a check and return its result; if it raises a DimredError, note the reason and return None."""
        try:
            return check()
        except DimredError as error:
            self._reasons.append(str(error))
            return None

    def check(self) -> None:
        """Raise a ConfigError with all problems noted, if there are any."""
        if len(self._reasons) == 1:
            raise ConfigError(self._reasons[0])
        if self._reasons:
            lines = "".join(f"\n  {number}. {text}" for number, text in enumerate(self._reasons, start=1))
            raise ConfigError(f"{len(self._reasons)} problems:{lines}")


def shown(value: Any, longest: int = 80) -> str:
    """Return ``repr(value)`` for an error message, on one line, with texts cut to about ``longest`` characters."""
    brief = reprlib.Repr()
    brief.maxlevel = 2
    brief.maxstring = longest
    brief.maxother = longest
    try:
        return " ".join(line.strip() for line in brief.repr(value).splitlines())
    except ValueError:  # Python refuses to print whole numbers of more than 4,300 digits
        return "a number of thousands of digits"


def number_of(n: int, noun: str) -> str:
    """Return a number and what it counts: 1 epoch, 2 epochs."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    whole: bool = False,
    usual: str = "",
) -> None:
    """Check that an option is a finite number in its range.

    Args:
        name: the option, as the user typed it.
        value: its value.
        above, at_least: the lower limit; give one of them.
        whole: whether the value must be a whole number.
        usual: end of the message, such as ``0.9 is usual``.

    Raises:
        ConfigError: the value is not allowed; the message says what is.
    """
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    is_above = is_number and (value > above if at_least is None else value >= at_least)
    if is_above and abs(value) < math.inf:
        return
    number = "a whole number" if whole else "a number"
    limit = f"above {above}" if at_least is None else f"of at least {at_least}"
    example = f" ({usual})" if usual else ""
    raise ConfigError(f"{name} is {shown(value)}; it must be {number} {limit}{example}", argument=name)


def check_type(name: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> None:
    """Check the type of an argument; raise ConfigError if it is a different one.

    Args:
        name, value: as for ``check_number``.
        kind: the type, or the types, that it must have.
        wanted: what to give, in words.
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {shown(value)}; it must be {wanted}", argument=name)


def checked_list(name: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> list[Any]:
    """Return an argument with several values as a list; a text is one value, and not several.

    Args:
        name, value: as for ``check_number``.
        kind: the type, or the types, that each value must have.
        wanted: what to give, in words.

    Raises:
        ConfigError: it is not iterable, or a value has a different type.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} is {shown(value)}; it must be {wanted}", argument=name)
    values = list(value)
    for item in values:
        if not isinstance(item, kind):
            raise ConfigError(f"{name} has {shown(item)}; it must be {wanted}", argument=name)
    return values


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Check that the value of an argument is one of ``choices``; raise ConfigError that lists them if it is not."""
    if not (isinstance(value, str) and value in choices):
        raise ConfigError(f"{name} is {shown(value)}; allowed: {', '.join(choices)}", argument=name)
