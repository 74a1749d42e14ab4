"""The user's metric: a function or a command that scores a candidate."""

import contextlib
import inspect
import math
import shlex
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.errors import DimredError, shown
from dimred.merging.inputs import read_one
from dimred.merging.output import put_statistics


class MetricError(DimredError):
    """One evaluation failed; the search goes on."""


class Score(NamedTuple):
    """What a metric gave for one candidate.

    Attributes:
        value: the score.
        error: its standard error; None where the metric gives none.
        samples: one number for each sample, with ``value`` as mean; None where the metric gives one number.
    """

    value: float
    error: float | None = None
    samples: tuple[float, ...] | None = None

    def __str__(self) -> str:
        return f"{self.value:.4f}" if self.error is None else f"{self.value:.4f} ± {self.error:.4f}"


class FunctionMetric:
    """A Python function: ``score(candidate)`` or ``score(candidate, split)``, of a path.

    A function whose first parameter is called ``tensors`` gets name -> array in place of the path. It returns a number;
    a tuple (number, standard error); or a list of one number a sample. The splits are ``search``, ``select``, ``test``.

    ``hook``, ``reestimate(candidate)``, returns name -> array of new statistics, which are written into the candidate.

    Attributes:
        has_splits: whether it tells the splits apart.
        reestimates: whether it has the hook.
    """

    def __init__(self, function: Callable[..., Any], hook: Callable[[str], Any] | None = None) -> None:
        self._function, self._hook = function, hook
        names = inspect.signature(function).parameters
        self._takes_tensors = "tensors" in names
        self.has_splits, self.reestimates = "split" in names, hook is not None

    def reestimate(self, candidate: Path) -> None:
        """Write the hook's statistics into the checkpoint; MetricError if the hook failed."""
        with _failures():
            if self._hook is not None:
                put_statistics(candidate, self._hook(str(candidate)))

    def score(self, candidate: Path, split: str) -> Score:
        """Score the checkpoint at ``candidate`` on a split; MetricError if the function failed or gave no number."""
        with _failures():
            argument = _tensors(candidate) if self._takes_tensors else str(candidate)
            return _as_score(self._function(argument, *([split] if self.has_splits else [])))

    def close(self) -> None:
        """Do nothing: there is no process to end."""


def command_metric(command: str) -> FunctionMetric:
    """Make a metric of a command whose last line of output is the score.

    Args:
        command: ``{}`` in it stands for the candidate's path, and ``{split}`` for the split.
    """
    words = shlex.split(command)

    def with_split(candidate: str, split: str) -> float:
        filled = [word.replace("{}", candidate).replace("{split}", split) for word in words]
        done = subprocess.run(filled, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        if done.returncode != 0:
            raise MetricError(f"it ended with status {done.returncode}; its last line was {shown(last)}")
        try:
            return float(last)
        except ValueError:
            raise MetricError(f"its last line is {shown(last)}, not a number") from None

    return FunctionMetric(with_split if "{split}" in command else lambda candidate: with_split(candidate, ""))


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn any error of the user's code into a MetricError; its traceback goes where the code's output goes."""
    try:
        yield
    except MetricError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise MetricError(" ".join(f"{type(error).__name__}: {error}".split())) from None


def _tensors(candidate: Path) -> dict[str, np.ndarray]:
    checkpoint, arrays = read_one(candidate), dict[str, np.ndarray]()
    for number, file in enumerate(checkpoint.files):
        arrays |= read_checkpoint(file, checkpoint.names_in(number))
    return arrays


def _as_score(returned: Any) -> Score:
    try:
        array = np.asarray(returned, np.float64)
        if isinstance(returned, str | bytes | bool) or returned is None or array.ndim > 1 or array.size == 0:
            raise TypeError
    except (TypeError, ValueError):
        kinds = "a number, a pair, or a list of numbers"
        raise MetricError(f"it returned {shown(returned)}, which is not {kinds}") from None
    if not np.isfinite(array).all():
        raise MetricError(f"it returned {shown(returned)}, which is not finite")
    if array.ndim == 0:
        return Score(float(array))
    if isinstance(returned, tuple) and len(array) == 2:
        return Score(float(array[0]), abs(float(array[1])))
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return Score(float(array.mean()), error, tuple(array.tolist()))
