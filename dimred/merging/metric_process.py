"""The user's metric in a process of its own, so that it may fail, hang or die.

``python -m dimred.merging.metric_process DESCRIPTOR SOURCE [NAME]`` loads a function of a file, or takes a command, and
answers questions over a socket, in JSON.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dimred.errors import ConfigError, DimredError
from dimred.merging.metric import FunctionMetric, MetricError, Score, command_metric

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class ProcessMetric:
    """A ``FunctionMetric`` of a file or a command, in a process that is started again if it was lost.

    Args:
        option: ``--metric`` or ``--metric-command``.
        source: ``FILE.py:NAME``, whose hook is the file's function ``reestimate``, if it has one; or the command.
        timeout_seconds: for one evaluation; a process that takes longer is ended.
        log: the file for what the process prints.

    Raises:
        ConfigError: there is no such file, no such function in it, or no place for the candidate in the command.
    """

    def __init__(self, option: str, source: str, timeout_seconds: float, log: Path) -> None:
        self._timeout_seconds, self._log = timeout_seconds, log
        self._process: subprocess.Popen[bytes] | None = None
        file, _, name = source.rpartition(":")
        if option == "--metric" and not (file and Path(file).is_file()):
            where = f", but there is no file {file!r}" if file else ""
            raise ConfigError(
                f"--metric is {source!r}{where}; give a Python file and a function, such as my_metric.py:score"
            )
        if option == "--metric-command" and "{}" not in source:
            raise ConfigError(f"--metric-command is {source!r}; put {{}} where the candidate's path is to stand")
        self._words = [file, name] if option == "--metric" else [source]
        try:
            about = self._start()
        except MetricError as error:
            self.close()
            raise ConfigError(f"{option} is {source!r}, which can't be used: {error} (see {log})") from None
        self.has_splits, self.reestimates = bool(about["has_splits"]), bool(about["reestimates"])

    def reestimate(self, candidate: Path) -> None:
        """Do as ``FunctionMetric``; MetricError also if the process hangs or dies."""
        self._ask({"candidate": str(candidate), "split": None})

    def score(self, candidate: Path, split: str) -> Score:
        """Score as ``FunctionMetric``; MetricError also if the process hangs or dies."""
        value, error, samples = self._ask({"candidate": str(candidate), "split": split})["score"]
        return Score(value, error, samples and tuple(samples))

    def close(self) -> None:
        """End the process, and all it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._connection.close()
            self._process = None

    def _start(self) -> dict[str, Any]:
        here, there = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(there.fileno()), *self._words]
        with there, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[there.fileno()],
                start_new_session=True,
            )  # fmt: skip
        self._connection = Connection(here.detach())
        return self._answer()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._start()
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile: there will be no answer either
            self._connection.send_bytes(json.dumps(question).encode())
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            if not self._connection.poll(self._timeout_seconds):
                raise MetricError(f"it took longer than --timeout {self._timeout_seconds:g} s")
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            status = self._process.wait() if self._process else 0
            self.close()
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise MetricError(f"its process died ({how})") from None
        except BaseException:
            self.close()
            raise
        if "failed" in answer:
            raise MetricError(answer["failed"])
        return answer


def _load(file: Path, name: str) -> FunctionMetric:
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise MetricError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise MetricError(f"{file} has no function {name!r}")
    return FunctionMetric(function, getattr(module, "reestimate", None))


def _end_with(connection: Connection) -> None:
    """Wait until the other side is gone, and then end this process and all that it started."""
    other_side = select.poll()
    other_side.register(connection.fileno(), 0)  # that it hung up is always told
    other_side.poll()
    os.killpg(0, signal.SIGKILL)


def _die_with_parent() -> None:
    """Ask the kernel to end this process with its parent, even while the metric keeps the interpreter's lock."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        print("prctl failed: a metric that hangs may outlive the merge", flush=True)


def _serve(connection: Connection, source: str, name: str = "") -> None:
    """Load the metric, tell what it can do, and answer questions until the other side goes away."""
    _die_with_parent()
    threading.Thread(target=_end_with, args=[connection], daemon=True).start()

    def answer(**content: Any) -> None:
        connection.send_bytes(json.dumps(content).encode())

    try:
        metric = _load(Path(source), name) if name else command_metric(source)
    except BaseException as error:
        traceback.print_exc()
        answer(failed=str(error) if isinstance(error, DimredError) else f"{type(error).__name__}: {error}")
        return
    answer(has_splits=metric.has_splits, reestimates=metric.reestimates)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            question = json.loads(connection.recv_bytes())
            candidate, split = Path(question["candidate"]), question["split"]
            try:
                if split is None:
                    metric.reestimate(candidate)
                answer(score=None if split is None else metric.score(candidate, split))
            except MetricError as error:
                answer(failed=str(error))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])), *sys.argv[2:])
