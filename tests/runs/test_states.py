"""The states from which a run resumes, also on a disk that fills up."""

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.states import RunStates, check_finite
from dimred.errors import DivergedError, FaultError, RunError, StoppedError
from dimred.io.atomic import retry
from dimred.io.file_format import STATE
from dimred.launch.signals import StopSignals
from dimred.runs.faults import translate_errors

MEGABYTE = np.zeros(1 << 18, np.float32)


@pytest.fixture
def small_disk(tmp_path: Path):
    """Mount a real file system of 2.5 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2560k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_the_newest_two_stay_by_step_and_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    states = RunStates(tmp_path)
    for step in (9, 10, 11):
        states.save(step, {"w": np.full(3, step, np.float32)}, {"epoch": step})
    assert sorted(path.name for path in states.directory.iterdir()) == ["state-10.ckpt", "state-11.ckpt"]
    newest = states.newest(pytest.fail)
    assert (newest.values, newest.arrays["w"].tolist(), list(newest.arrays)) == ({"epoch": 11}, [11.0] * 3, ["w"])


def test_a_resumed_run_removes_what_the_killed_one_left_over(tmp_path: Path) -> None:
    states, killed = RunStates(tmp_path), RunStates(tmp_path)
    killed.keep = 5
    for step in (1, 2, 3, 4, 5):
        killed.save(step, {"w": np.ones(3, np.float32)}, {})
    states.forget_after(4)
    assert sorted(path.name for path in states.directory.iterdir()) == ["state-3.ckpt", "state-4.ckpt"]


def test_a_truncated_state_is_skipped_and_named(tmp_path: Path) -> None:
    states = RunStates(tmp_path)
    for step in (1, 2):
        states.save(step, {"w": np.ones(3, np.float32), "v": np.ones(2, np.float32)}, {"step": step})
    path = states.directory / "state-2.ckpt"
    whole = path.read_bytes()
    for length in range(len(whole) - 17):  # the last 17 bytes are the checksum, without which it is whole too
        path.write_bytes(whole[:length])
        said: list[str] = []
        assert states.newest(said.append).values == {"step": 1}
        assert [str(path) in words for words in said] == [True]


def test_states_that_are_unreadable_or_gone_are_refused(tmp_path: Path) -> None:
    """A run that began anew would remove its snapshots and checkpoints."""
    states = RunStates(tmp_path)
    with pytest.raises(RunError, match=r"There is no state in .*resume\. .*restore one in .*resume"):
        states.newest(pytest.fail)
    for step in (1, 2):
        states.save(step, {"w": np.ones(3)}, {})
        (states.directory / f"state-{step}.ckpt").write_bytes(b"")
    said: list[str] = []
    with pytest.raises(RunError, match=r"state-1\.ckpt is empty\. .*No other state is left; restore one in .*resume"):
        states.newest(said.append)
    assert ["state-2.ckpt is empty" in words for words in said] == [True]


def test_a_state_of_a_newer_dimred_ends_the_resume_instead_of_being_skipped(tmp_path: Path) -> None:
    states = RunStates(tmp_path)
    arrays = {"w": np.ones(2, np.float32)}
    states.save(1, arrays, {})
    newest = states.directory / "state-2.ckpt"
    newer = STATE._replace(version=2).marked({})
    write_checkpoint(newest, arrays, {"dimred_values": json.dumps(newer)})
    with pytest.raises(RunError) as error:
        states.newest(pytest.fail)
    assert str(error.value) == (
        f"{newest} can't be used (it has version 2 of its format, and this dimred reads version 1; use a dimred that "
        "is as new as the one that wrote it); otherwise begin a new run with another --out"
    )


def test_numbers_that_are_not_finite_are_told_with_their_name_unless_they_may_be() -> None:
    arrays = {"n": np.ones(2, np.int32), "mask": np.array([0.0, -np.inf]), "w": np.array([1.0, np.nan])}
    with pytest.raises(DivergedError, match="after step 2 'w' has numbers that are not finite"):
        check_finite(arrays, 2, {"mask"})
    check_finite(arrays, 2, {"mask", "w"})


def test_on_a_full_disk_older_states_give_way_and_the_newest_never_does(small_disk: Path) -> None:
    """When even that leaves no room, a program that was told to end does not wait for it."""
    states = RunStates(small_disk)
    for step in (1, 2, 3):  # two fit, and no third
        states.save(step, {"w": MEGABYTE + step}, {})
    assert states.newest(pytest.fail).arrays["w"][0] == 3
    (states.directory / "state-2.ckpt").unlink()
    (small_disk / "ballast").write_bytes(b"x" * (1 << 20))
    with StopSignals() as signals, suppress(StoppedError), signals.held():
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(FaultError) as fault, translate_errors(states):
            retry(lambda: states.save(4, {"w": MEGABYTE}, {}))
    for words in ("state-4.ckpt", "No space left", "state-3.ckpt", "once the cause is gone", "--resume"):
        assert words in str(fault.value)
    assert states.newest(pytest.fail).arrays["w"][0] == 3
    assert [path.name for path in states.directory.iterdir()] == ["state-3.ckpt"]


def test_a_full_disk_is_waited_for_and_that_is_said_once_a_minute(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ballast, waited = small_disk / "ballast", 0.0
    ballast.write_bytes(b"x" * (2 << 20))
    states = RunStates(small_disk)

    def wait(pause: float) -> None:
        nonlocal waited
        waited += pause
        if waited >= 150:
            ballast.unlink(missing_ok=True)

    monkeypatch.setattr("dimred.io.atomic.stop_waiting.wait", wait)
    retry(lambda: states.save(1, {"w": MEGABYTE}, {}))
    assert states.newest(pytest.fail).path.name == "state-1.ckpt"
    assert waited == 150
    assert caplog.text.count("No space left on device; waiting until there is room") == 3


def test_a_disk_that_became_read_only_is_named(small_disk: Path) -> None:
    states = RunStates(small_disk)
    states.save(1, {"w": np.ones(3)}, {})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    words = r"state-2\.ckpt: Read-only file system; the last good state is .*state-1"
    with pytest.raises(FaultError, match=words), translate_errors(states):
        retry(lambda: states.save(2, {"w": np.ones(3)}, {}))
    assert states.newest(pytest.fail).path.name == "state-1.ckpt"
