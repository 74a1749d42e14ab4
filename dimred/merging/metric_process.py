"""The user's metric in a process of its own, which may fail, hang or die: a function in a file, or a command.

``python -m dimred.merging.metric_process FILE NAME DESCRIPTOR`` loads the file once and answers questions over a
socket, in JSON.
"""

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dimred.errors import ConfigError, shown
from dimred.merging.metric import FunctionMetric, Metric, MetricError, Score, as_score

__all__ = ["CommandMetric", "FileMetric"]


class FileMetric(Metric):
    """A function in a Python file, with the file's function ``reestimate`` as hook, if it has one.

    Args:
        spec: ``FILE.py:NAME``.
        timeout_seconds: for one evaluation; a process that takes longer is ended, and another started.
        log: the file for what the process prints.

    Raises:
        ConfigError: there is no such file, or no such function in it.
    """

    def __init__(self, spec: str, timeout_seconds: float, log: Path) -> None:
        file, _, self._name = spec.rpartition(":")
        self._file, self._timeout_seconds, self._log = Path(file), timeout_seconds, log
        self._process: subprocess.Popen[bytes] | None = None
        if not file or not self._file.is_file():
            raise ConfigError(f"--metric is {spec!r}; give a Python file and a function, such as my_metric.py:score")
        try:
            about = self._start()
        except MetricError as error:
            self.close()
            raise ConfigError(f"--metric is {spec!r}, which can't be used: {error}; {log} has all it printed") from None
        self.has_splits, self.reestimates = bool(about["has_splits"]), bool(about["reestimates"])

    def reestimate(self, candidate: Path) -> None:
        self._ask({"candidate": str(candidate), "split": None})

    def score(self, candidate: Path, split: str) -> Score:
        answer = self._ask({"candidate": str(candidate), "split": split})
        return Score(answer["value"], answer["error"], None if answer["samples"] is None else tuple(answer["samples"]))

    def close(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._connection.close()
            self._process = None

    def _start(self) -> dict[str, Any]:
        here, there = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(self._file), self._name, str(there.fileno())]
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
                raise _too_slow(self._timeout_seconds)
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


class CommandMetric(Metric):
    """A command whose last line is a number; ``{}`` in it stands for the candidate's path, ``{split}`` for the split.

    Args:
        command: words, quoted as in a shell, which does not see them.
        timeout_seconds, log: as ``FileMetric``.

    Raises:
        ConfigError: it has no ``{}``.
    """

    def __init__(self, command: str, timeout_seconds: float, log: Path) -> None:
        self._words, self._timeout_seconds, self._log = shlex.split(command), timeout_seconds, log
        self.has_splits = "{split}" in command
        if "{}" not in command:
            raise ConfigError(f"--metric-command is {command!r}; put {{}} where the candidate's path is to stand")

    def score(self, candidate: Path, split: str) -> Score:
        words = [word.replace("{}", str(candidate)).replace("{split}", split) for word in self._words]
        try:
            with self._log.open("ab") as log:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise MetricError(f"{words[0]} can't be started: {error.strerror}") from None
        try:
            output, _ = process.communicate(timeout=self._timeout_seconds)
        except subprocess.TimeoutExpired:
            raise _too_slow(self._timeout_seconds) from None
        finally:
            _end(process)
        lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        if process.returncode != 0:
            raise MetricError(f"it ended with status {process.returncode}; its last line was {shown(last)}")
        try:
            return as_score(float(last))
        except ValueError:
            raise MetricError(f"its last line is {shown(last)}, not a number") from None


def _too_slow(seconds: float) -> MetricError:
    return MetricError(f"it took longer than --timeout {seconds:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


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


def _serve(file: Path, name: str, connection: Connection) -> None:
    """Load the metric, say what it can, and answer questions until the other side goes away."""

    def answer(content: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(content).encode())

    try:
        metric = _load(file, name)
    except BaseException as error:
        traceback.print_exc()
        answer({"failed": str(error) if isinstance(error, MetricError) else f"{type(error).__name__}: {error}"})
        return
    answer({"has_splits": metric.has_splits, "reestimates": metric.reestimates})
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            question = json.loads(connection.recv_bytes())
            candidate, split = Path(question["candidate"]), question["split"]
            try:
                if split is None:
                    metric.reestimate(candidate)
                answer({} if split is None else metric.score(candidate, split)._asdict())
            except MetricError as error:
                answer({"failed": str(error)})


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2], Connection(int(sys.argv[3])))
