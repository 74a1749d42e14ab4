"""What a user's metric may return, and every way in which it may fail without ending the search."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import psutil
import pytest

from dimred.errors import ConfigError
from dimred.merging.user_metric import FunctionMetric, MetricError, ProcessMetric, Score
from tests.helpers.checkpoint_files import BITS, network, read_file, write_file, write_shards
from tests.merging.problems import METRICS, STATISTICS

VALUES = np.array([0.5, 1.5, 4.0], np.float32)


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    return write_file(tmp_path / "candidate.safetensors", {"w": VALUES})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "metric.log"


@pytest.fixture
def start_metric(log: Path) -> Iterator:
    with ExitStack() as stack:
        yield lambda source: stack.enter_context(closing(ProcessMetric(source, 60, log)))


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (np.float32(0.5), Score(0.5)),
        ((0.5, 0.25), Score(0.5, 0.25)),
        ([0.5, 1.5, 4.0], Score(2.0, pytest.approx(np.std([0.5, 1.5, 4.0], ddof=1) / 3**0.5), (0.5, 1.5, 4.0))),
    ],
)
def test_a_number_a_pair_and_samples(candidate: Path, value: object, score: Score) -> None:
    assert FunctionMetric(lambda path: value).score(candidate, "search") == score


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0.5", "it returned '0.5', which is not a number, a pair, or a list of numbers"),
        (None, "it returned None, which is not a number"),
        (np.bool_(True), "it returned True, which is not a number"),
        ([1.0, float("nan")], r"it returned \[1.0, nan\], which is not finite"),
        ([0.5, 0.1], r"it returned \[0.5, 0.1\], two numbers that are not a score and its error; return a tuple"),
        (np.array([0.5, 0.1]), "two numbers that are not a score and its error"),
        ((0.5, -0.1), r"it returned \(0.5, -0.1\), .* with an error of at least 0"),
    ],
)
def test_a_returned_value_that_is_no_score_is_refused(candidate: Path, value: object, words: str) -> None:
    with pytest.raises(MetricError, match=words):
        FunctionMetric(lambda path: value).score(candidate, "search")


def test_a_function_of_a_file_and_of_this_process(start_metric, candidate: Path, log: Path) -> None:
    metric = start_metric(f"{METRICS}:number")
    assert (metric.has_splits, metric.reestimates) == (False, False)
    assert metric.score(candidate, "search") == Score(0.5)
    assert "this goes to the log" in log.read_text()
    metric = start_metric(f"{METRICS}:samples")
    metric.timeout_seconds = 1e12  # what a user may give for no limit
    assert metric.score(candidate, "search").samples == (0.5, 1.5, 4.0)
    calls = []

    def score(tensors, split):
        calls.append((split, tensors["w"].tolist()))
        return float(tensors["w"][1])

    assert FunctionMetric(score).score(candidate, "select") == Score(1.5)
    assert calls == [("select", VALUES.tolist())]


def test_what_a_function_takes_besides_is_its_own(candidate: Path) -> None:
    def score(path, tensors=None, size=64, *, split):
        return float(path == str(candidate) and (tensors, size, split) == (None, 64, "select"))

    assert FunctionMetric(score).score(candidate, "select") == Score(1.0)


OWN_METRIC = """
from __future__ import annotations
import dataclasses, pickle, queue, random, signal, token
import helper, of_the_working_folder
@dataclasses.dataclass
class Value:
    number: float
def double(number):
    return 2 * number
def score(candidate):
    if __name__ == "my_metric":  # other processes can import it by that name
        assert pickle.loads(pickle.dumps(double)) is double
    return double(Value(helper.VALUE).number)
"""


@pytest.mark.parametrize("name", ["my_metric", "random", "evaluate.loss"])
def test_files_of_the_user_hide_no_module_of_python(
    start_metric, candidate: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those in the current folder, nor those beside the metric, nor the metric itself."""
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
        for hiding in ("random", "token", "signal", "queue", "json", "numpy"):
            (folder / f"{hiding}.py").write_text(f"raise RuntimeError('{hiding} is hidden')")
    (here / "of_the_working_folder.py").touch()
    (beside / "helper.py").write_text("VALUE = 0.25")
    (beside / f"{name}.py").write_text(OWN_METRIC)
    monkeypatch.chdir(here)
    assert start_metric(f"{beside / name}.py:score").score(candidate, "search") == Score(0.5)


@pytest.mark.parametrize(
    ("name", "words"), [("raises", "RuntimeError: no such data set"), ("dies", "its process died (signal 9)")]
)
def test_a_failure_is_told(start_metric, candidate: Path, name: str, words: str) -> None:
    metric = start_metric(f"{METRICS}:{name}")
    with pytest.raises(MetricError) as error:
        metric.score(candidate, "search")
    assert str(error.value).startswith(words)


def test_a_metric_that_never_returns(start_metric, candidate: Path) -> None:
    metric = start_metric(f"{METRICS}:hangs")
    metric.timeout_seconds = 0.5
    with pytest.raises(MetricError, match=r"it took longer than the timeout of 0\.5 s"):
        metric.score(candidate, "search")


@pytest.mark.slow
def test_a_metric_that_hangs_ends_with_a_merge_that_is_killed(tmp_path: Path) -> None:
    """The kernel must end it, because a metric that keeps the interpreter's lock runs no thread of ours."""
    for number in (1, 2):
        write_file(tmp_path / "run" / f"n-{number}.safetensors", {"w": VALUES})
    program = [Path(sys.executable).with_name("dimred"), "merge", tmp_path / "run", "--out", tmp_path / "x.safetensors"]
    program += ["--metric", f"{METRICS}:hangs_with_the_lock", "--minimize"]
    log = tmp_path / "x.safetensors.merge" / "metric.log"
    with subprocess.Popen(list(map(str, program)), stderr=subprocess.DEVNULL) as merge:
        while not (log.exists() and "begins to hang" in log.read_text()):
            assert merge.poll() is None
            time.sleep(0.01)
        children = psutil.Process(merge.pid).children(recursive=True)
        merge.kill()
    assert children
    assert not psutil.wait_procs(children, timeout=20)[1]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gone.py:score", "give a Python file and a function"),
        (f"{METRICS}", "give a Python file and a function"),
        (f"{METRICS}:", "give a Python file and a function"),
        (f"{METRICS}:absent", "has no function 'absent'"),
        (f"{METRICS}:not_a_function", "has no function 'not_a_function'"),
        ("broken.py:score", "ModuleNotFoundError: No module named 'gone_module'"),
    ],
)
def test_a_file_without_a_metric_is_refused(
    start_metric, spec: str, words: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("import gone_module\n")
    with pytest.raises(ConfigError) as error:
        start_metric(spec)
    assert words in str(error.value)
    assert f"metric is {spec!r}" in str(error.value)
    assert "broken" not in spec or "Traceback" in log.read_text()


def test_what_is_neither_a_text_nor_a_function_is_refused(start_metric) -> None:
    with pytest.raises(ConfigError, match="metric is 3; give a Python file and a function"):
        start_metric(3)


def test_a_file_may_import_its_neighbours(start_metric, tmp_path: Path, candidate: Path) -> None:
    (tmp_path / "neighbour_module.py").write_text("VALUE = 7\n")
    (tmp_path / "mine.py").write_text("import neighbour_module\ndef score(path):\n    return neighbour_module.VALUE\n")
    assert start_metric(f"{tmp_path / 'mine.py'}:score").score(candidate, "search") == Score(7.0)


def test_tensors_of_shards_and_bfloat16(tmp_path: Path) -> None:
    shards = [{"a": np.array([16256, 16384], BITS)}, {"b": VALUES}]
    folder = write_shards(tmp_path / "candidate", shards)
    assert FunctionMetric(lambda tensors: [*tensors["a"], *tensors["b"]]).score(folder, "search").samples == (
        1.0,
        2.0,
        0.5,
        1.5,
        4.0,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BITS])
def test_the_hook_changes_the_statistics_and_nothing_else(start_metric, tmp_path: Path, dtype: type) -> None:
    before = network(1, dtype)
    candidate = write_file(tmp_path / "candidate.safetensors", before)
    metric = start_metric(f"{STATISTICS}:score")
    assert (metric.has_splits, metric.reestimates) == (True, True)
    metric.reestimate(candidate)
    after = read_file(candidate)
    np.testing.assert_array_equal(after["bn.running_var"], np.ones(7))
    if dtype is not BITS:
        np.testing.assert_array_equal(after["bn.running_mean"], before["fc.weight"][:7, 0])
    for name in ("conv.weight", "fc.weight", "bn.num_batches_tracked"):
        np.testing.assert_array_equal(after[name], before[name])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"fc.weight": 0}, "allowed: statistics by name, such as ('bn.running_mean', 'bn.running_var')"),
        (None, "reestimate returned None; allowed: statistics by name"),
        ({"bn.running_mean": np.full(7, np.nan)}, "'bn.running_mean' with an infinite number or NaN"),
        ({"bn.running_mean": np.zeros(3)}, "'bn.running_mean' with the shape (3,); allowed: (7,)"),
    ],
)
def test_a_hook_that_returns_something_else_is_refused(tmp_path: Path, value: object, words: str) -> None:
    candidate = write_file(tmp_path / "candidate.safetensors", network(1))
    with pytest.raises(MetricError) as error:
        FunctionMetric(lambda path: 0, lambda path: value).reestimate(candidate)
    assert words in str(error.value)


def test_a_timeout_ends_what_the_metric_started(
    start_metric, candidate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
    metric = start_metric(f"{METRICS}:runs_a_program")
    metric.timeout_seconds = 5
    with pytest.raises(MetricError, match="longer than"):
        metric.score(candidate, "search")
    number, deadline = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
