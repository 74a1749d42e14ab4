"""The user's metric: a function in this process, or a function from a file, in another process.

That process is ``python -m dimred.merging.user_metric DESCRIPTOR FILE NAME``: it loads the function NAME from FILE, and
answers questions in JSON over the socket DESCRIPTOR.
"""

import contextlib
import importlib.util
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.averaging.choice import standard_error
from dimred.errors import ConfigError, DimredError, shown
from dimred.io.regular_file import check_regular
from dimred.io.system import start_tied
from dimred.merging.folder import read_one
from dimred.merging.output import put_statistics

_WHAT_TO_GIVE = "give a Python file and a function, such as my_metric.py:score"
_LONGEST_POLL_SECONDS = 2e6  # the kernel counts milliseconds in 31 bits


class MetricError(DimredError):
    """An evaluation failed, which ends the merge."""


class Score(NamedTuple):
    """A metric's result for one candidate.

    Attributes:
        value: the score.
        error: its standard error; None if it isn't known.
        samples: one number for each sample, whose mean is ``value``; None if the metric gives one number.
    """

    value: float
    error: float | None = None
    samples: tuple[float, ...] | None = None


class FunctionMetric:
    """A metric that is a Python function, ``score(candidate)`` or ``score(candidate, split)``.

    The candidate is a path; if the first parameter is called ``tensors``, it gets name -> array instead. It returns
    a number, a tuple (number, standard error), or a list with one number for each of more than two samples. The splits
    are ``search``, ``select`` and ``test``.

    Args:
        function: the function.
        hook: ``reestimate(candidate)``, which returns new statistics, name -> array, to write into the candidate.

    Raises:
        MetricError: the function can't be called like that.

    Attributes:
        has_splits: whether the function takes the split.
        reestimates: whether there is a hook.
    """

    def __init__(self, function: Callable[..., Any], hook: Callable[[str], Any] | None = None) -> None:
        self._function = function
        self._hook = hook
        self.reestimates = hook is not None
        try:
            signature = inspect.signature(function)
            names = list(signature.parameters)
            self._takes_tensors = names[:1] == ["tensors"]
            self.has_splits = "split" in names
            signature.bind("candidate", **({"split": "search"} if self.has_splits else {}))
        except (TypeError, ValueError):  # ValueError for a built-in type, such as dict
            raise MetricError("it must be a function of a candidate, or of a candidate and a split") from None

    def reestimate(self, candidate: Path) -> None:
        """Write the hook's statistics into the checkpoint; MetricError if the hook fails."""
        with _failures():
            if self._hook is not None:
                put_statistics(candidate, self._hook(str(candidate)))

    def score(self, candidate: Path, split: str) -> Score:
        """Score the checkpoint at ``candidate`` on a split; MetricError if the function fails or returns no number."""
        with _failures():
            argument: Any = str(candidate)
            if self._takes_tensors:
                checkpoint = read_one(candidate)
                argument = {name: checkpoint.read(name) for name in checkpoint.tensors}
            return _as_score(self._function(argument, **({"split": split} if self.has_splits else {})))

    def close(self) -> None:
        """Do nothing: the function runs in this process."""


class ProcessMetric:
    """A metric in another process, which is ended when a question fails.

    Args:
        source: ``FILE.py:NAME``, a function in a file that may also define ``reestimate(candidate)``.
        timeout_seconds: limit on loading, on a score and on a re-estimation; a process that takes longer is ended.
        log: file for what the process prints.

    Raises:
        ConfigError: the file or its function does not exist or can't be loaded.
    """

    def __init__(self, source: str, timeout_seconds: float, log: Path) -> None:
        self.timeout_seconds = timeout_seconds
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        file, _, name = str(source).rpartition(":")  # a caller may have given a path or a function
        if not (file and name):
            raise ConfigError(f"metric is {source!r}; {_WHAT_TO_GIVE}", argument="metric")
        try:
            check_regular(file)
        except OSError as error:
            raise ConfigError(
                f"metric is {source!r}, but {file!r} can't be read ({error.strerror}); {_WHAT_TO_GIVE}",
                argument="metric",
            ) from None
        try:
            self.has_splits, self.reestimates = self._start(file, name)
        except MetricError as error:
            self.close()
            raise ConfigError(
                f"metric is {source!r}, which can't be used: {error} (see {log})", argument="metric"
            ) from None

    def reestimate(self, candidate: Path) -> None:
        """Do the same as ``FunctionMetric.reestimate``; MetricError also if the process hangs or has died."""
        self._ask(str(candidate), None)

    def score(self, candidate: Path, split: str) -> Score:
        """Do the same as ``FunctionMetric.score``; MetricError also if the process hangs or has died."""
        value, error, samples = self._ask(str(candidate), split)
        return Score(value, error, samples and tuple(samples))

    def close(self) -> None:
        """End the process, and all that it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._connection.close()
            self._process = None

    def _start(self, file: str, name: str) -> Any:
        here, there = socket.socketpair()
        command = [sys.executable, "-P", "-m", "dimred.merging.user_metric", str(there.fileno()), file, name]
        with there, self._log.open("ab") as log:
            self._process = start_tied(  # for a metric that never releases the GIL, and so can't end by itself
                command, signal.SIGKILL, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[there.fileno()]
            )
        self._connection = Connection(here.detach())
        return self._answer()

    def _ask(self, *question: str | None) -> Any:
        with contextlib.suppress(BrokenPipeError):  # if it has died, reading the answer fails too
            self._connection.send_bytes(json.dumps(question).encode())
        return self._answer()

    def _answer(self) -> Any:
        try:
            if not self._connection.poll(min(self.timeout_seconds, _LONGEST_POLL_SECONDS)):
                raise MetricError(f"it took longer than the timeout of {self.timeout_seconds:g} s")
            failure, result = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            status = self._process.wait() if self._process else 0
            self.close()
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise MetricError(f"its process died ({how})") from None
        except BaseException:
            self.close()
            raise
        if failure is not None:
            raise MetricError(failure)
        return result


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn any error of the user's code into a MetricError, and print its traceback; go back to the current folder."""
    try:
        with contextlib.chdir(Path.cwd()):
            yield
    except MetricError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise MetricError(" ".join(f"{type(error).__name__}: {error}".split())) from None


def _as_score(value: Any) -> Score:
    try:
        array = np.asarray(value, np.float64)
        if isinstance(value, str | bytes | bool | np.bool_) or value is None or array.ndim > 1 or array.size == 0:
            raise TypeError
    except (TypeError, ValueError):
        kinds = "a number, a pair, or a list of numbers"
        raise MetricError(f"it returned {shown(value)}, which is not {kinds}") from None
    if not np.isfinite(array).all():
        raise MetricError(f"it returned {shown(value)}, which is not finite")
    if array.ndim == 0:
        return Score(float(array))
    if isinstance(value, tuple) and len(array) == 2 and array[1] >= 0:
        return Score(float(array[0]), float(array[1]))
    if len(array) == 2:
        raise MetricError(
            f"it returned {shown(value)}, two numbers that are not a score and its error; return a tuple (score, "
            "standard error), with an error of at least 0, or one number for each of more than two samples"
        )
    error = standard_error(array) if len(array) > 1 else None
    return Score(float(array.mean()), error, tuple(array.tolist()))


def _load(file: Path, name: str) -> FunctionMetric:
    # Behind all else, so that a user's random.py hides no module of Python's.
    sys.path += [str(file.resolve().parent), str(Path.cwd())]
    module_name = file.stem
    found = PathFinder.find_spec(module_name)
    if module_name in sys.builtin_module_names or (found and not _is_at(found, file)):
        module_name = f"metric_{module_name}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise MetricError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise MetricError(f"{file} has no function {name!r}")
    return FunctionMetric(function, getattr(module, "reestimate", None))


def _is_at(found: ModuleSpec, file: Path) -> bool:
    """Return whether a module that Python finds is this file."""
    return found.origin is not None and Path(found.origin).resolve() == file.resolve()


def _end_with(connection: Connection) -> None:
    """Wait until the merge has ended, then end this process and all that it started."""
    merge = select.poll()
    merge.register(connection.fileno(), select.POLLHUP)
    merge.poll()
    os.killpg(0, signal.SIGKILL)


def _serve(connection: Connection, file: str, name: str) -> None:
    """Load the metric, send whether it takes splits and re-estimates, and answer questions until the merge ends.

    An answer is [why it failed, None] or [None, result].
    """
    threading.Thread(target=_end_with, args=[connection], daemon=True).start()

    def answer(failure: str | None, result: Any = None) -> None:
        connection.send_bytes(json.dumps([failure, result]).encode())

    try:
        metric = _load(Path(file), name)
    except BaseException as error:
        traceback.print_exc()
        answer(str(error) if isinstance(error, DimredError) else f"{type(error).__name__}: {error}")
        return
    answer(None, [metric.has_splits, metric.reestimates])
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            candidate, split = json.loads(connection.recv_bytes())
            try:
                if split is None:
                    metric.reestimate(Path(candidate))
                answer(None, None if split is None else metric.score(Path(candidate), split))
            except MetricError as error:
                answer(str(error))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])), *sys.argv[2:])
