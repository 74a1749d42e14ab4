"""Metrics are written as JSON lines and told to listeners."""

import resource
import struct
import threading
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from dimred.errors import ConfigError
from dimred.io.atomic import stop_waiting
from dimred.run_files.metrics_file import read_metrics
from dimred.runs.listeners import TensorBoard, make_callback
from dimred.runs.records import MetricsLog, cut_metrics, read_beginning
from tests.helpers import needs


def test_records_are_appended_across_openings_and_no_number_breaks_the_format(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write(step=1, loss=float("nan"), seconds={"gradient": float("inf"), "trials": 0.5})
        assert read_metrics(path) == [{"step": 1, "loss": None, "seconds": {"gradient": None, "trials": 0.5}}]
    with MetricsLog(path) as log:
        log.write(step=2, loss=0.25)
        assert b"".join(read_beginning(path, log.mark())) == path.read_bytes()
    assert [record["step"] for record in read_metrics(path)] == [1, 2]


def test_tensorboard_gets_the_numbers_and_hides_what_a_killed_run_wrote_too_far(tmp_path: Path) -> None:
    path, folder = tmp_path / "metrics.jsonl", tmp_path / "tensorboard"
    with MetricsLog(path, [TensorBoard(folder, None)]) as log:
        log.write(step=1, loss=0.5, kept=True, parts={"a": 1.0})
        mark = log.mark()
        log.write(step=2, loss=0.4)
    cut_metrics(path, mark)
    with MetricsLog(path, [TensorBoard(folder, read_metrics(path)[-1])]) as log:
        log.write(step=2, loss=0.25, metrics={"accuracy": {"as_trained": 0.5}})
    first, second = (_events(file) for file in sorted(folder.iterdir()))
    assert [(e.step, e.summary.value[0].simple_value) for e in first if e.summary.value][:2] == [(1, 1.0), (1, 0.5)]
    assert [e.step for e in second if e.session_log.status == SessionLog.START] == [2]  # this hides later steps
    assert [(e.step, e.summary.value[0].tag) for e in second if e.summary.value] == [
        (2, "step"),
        (2, "loss"),
        (2, "metrics/accuracy/as_trained"),
    ]


class Broken:
    """A listener that fails when it is told a record, or when it is closed."""

    def __init__(self, fails_at: str) -> None:
        self.fails_at, self.n_calls = fails_at, 0

    def __call__(self, record: dict[str, object]) -> None:
        self.n_calls += 1
        self._fail("call")

    def close(self) -> None:
        self._fail("close")

    def __repr__(self) -> str:
        return "broken"

    def _fail(self, at: str) -> None:
        if at == self.fails_at:
            raise OSError("the server is gone")


@pytest.mark.parametrize("fails_at", ["call", "close"])
def test_listeners_get_every_record_and_a_broken_one_does_not_end_the_run(
    fails_at: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[dict[str, object]] = []
    broken = Broken(fails_at)
    with MetricsLog(tmp_path / "metrics.jsonl", [broken, dict.popitem, told.append]) as log:
        for step in (1, 2):
            assert log.write(step=step, loss=float("inf")) == {"step": step, "loss": None}
    assert told == read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": None}, {"step": 2, "loss": None}]
    assert broken.n_calls == (1 if fails_at == "call" else 2)
    (said,) = caplog.messages
    assert said.startswith("broken failed (OSError: the server is gone)")


def forgetful(folder: Path) -> None:
    """Make a callback, but return none."""


def test_a_callback_that_is_no_function_is_refused(tmp_path: Path) -> None:
    name = f"{__name__}:forgetful"
    with pytest.raises(ConfigError, match=f"callback is '{name}', which returned None; it must return a function"):
        make_callback(name, tmp_path)


@needs.FULL_DEVICE
def test_a_full_disk_is_waited_for_and_told_with_the_file(caplog: pytest.LogCaptureFixture) -> None:
    threading.Timer(0.2, stop_waiting.set).start()
    try:
        with pytest.raises(OSError, match="No space left") as failed, MetricsLog(Path("/dev/full")) as log:
            log.write(step=1)
    finally:
        stop_waiting.clear()
    assert failed.value.filename == "/dev/full"
    assert caplog.text.count("/dev/full: No space left on device; waiting until there is room") == 1


def test_a_full_disk_ends_tensorboard_alone(tmp_path: Path) -> None:
    """It raises, and ``MetricsLog`` drops a listener that fails; a limit on files' size stands for the full disk."""
    board = TensorBoard(tmp_path, None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            [board({"step": step, "loss": 0.5}) for step in range(1_000)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    board.close()


def _events(path: Path) -> list[Event]:
    """Read the records of an event file: length (8 bytes), its checksum (4), the event, its checksum (4)."""
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return events
