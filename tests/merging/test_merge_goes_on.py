"""Searches that are killed, stopped or disturbed go on, and lose and mix nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import ConfigError, FaultError, RunError, StoppedError
from dimred.files.lock import FolderLock
from tests.helpers.checkpoint_files import read_file
from tests.helpers.commands import dimred as command
from tests.merging.problems import METRICS, score_zero


def test_the_kth_trial_is_the_same_after_a_kill(planted: Path) -> None:
    """SIGKILL in the middle, and again; the file of trials and the result are those of a run that was left alone."""
    arguments = ["merge", planted / "run", "--metric", f"{METRICS}:distance", "--minimize", "--budget", "80"]
    whole = planted / "whole.safetensors"
    assert command(*arguments, "--out", whole).returncode == 0
    out = planted / "killed.safetensors"
    trials = planted / "killed.safetensors.merge" / "trials.jsonl"
    for lines in (15, 60):
        program = [Path(sys.executable).with_name("dimred"), *arguments, "--out", out]
        with subprocess.Popen(list(map(str, program)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 120
            while not (trials.exists() and trials.read_bytes().count(b"\n") >= lines):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    assert not out.exists()
    with trials.open("ab") as file:
        file.write(b'{"number": 61, "candi')  # half a line
    done = command(*arguments, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == whole.read_bytes()

    def content(path: Path) -> list[dict]:
        lines = [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]

    assert content(trials.parent) == content(planted / "whole.safetensors.merge")
    record, expected = json.loads(done.stdout), json.loads((planted / "whole.safetensors.json").read_text())
    assert record == expected
    assert sorted(path.name for path in trials.parent.iterdir()) == sorted(
        path.name for path in (planted / "whole.safetensors.merge").iterdir()
    )


def test_a_larger_budget_goes_on_from_a_smaller_one(planted: Path) -> None:
    calls = []

    def score(tensors: dict[str, np.ndarray]) -> float:
        calls.append(1)
        return float(np.linalg.norm(tensors["w"] - np.load(planted / "optimum.npy")))

    out = planted / "x.safetensors"
    dimred.merge(planted / "run", out, metric=score, minimize=True, budget=60)
    first = len(calls)
    out.unlink()
    Path(f"{out}.json").unlink()
    record = dimred.merge(planted / "run", out, metric=score, minimize=True, budget=100)
    assert len(calls) <= first + 40 + 8
    assert record["evaluations"] > 100


def test_ctrl_c_leaves_the_best_so_far_and_goes_on(planted: Path) -> None:
    optimum = np.load(planted / "optimum.npy")
    stop_at = [45]

    def score(tensors: dict[str, np.ndarray]) -> float:
        stop_at[0] -= 1
        if stop_at[0] == 0:
            raise KeyboardInterrupt
        return float(np.linalg.norm(tensors["w"] - optimum))

    out = planted / "x.safetensors"
    with pytest.raises(StoppedError, match=r"stopped by ctrl-C; the best so far is in .*x\.safetensors"):
        dimred.merge(planted / "run", out, metric=score, minimize=True, budget=100)
    record = json.loads((planted / "x.safetensors.json").read_text())
    assert record["interrupted"]
    lines = (planted / "x.safetensors.merge" / "trials.jsonl").read_text().splitlines()[1:]
    scores = [json.loads(line)["score"]["value"] for line in lines]
    assert len(scores) == 44
    assert np.linalg.norm(read_file(out)["w"] - optimum) == pytest.approx(min(scores))
    again = dimred.merge(planted / "run", out, metric=score, minimize=True, budget=100)
    assert not again["interrupted"]
    assert np.linalg.norm(read_file(out)["w"] - optimum) < min(scores)
    with pytest.raises(ConfigError, match="exists already"):
        dimred.merge(planted / "run", out, metric=score, minimize=True, budget=100)


def test_ctrl_c_in_a_terminal_reaches_only_us(planted: Path) -> None:
    """The metric's process is in a session of its own: it does not die of the same ctrl-C, and is ended with us."""
    out = planted / "x.safetensors"
    trials = planted / "x.safetensors.merge" / "trials.jsonl"
    program = [Path(sys.executable).with_name("dimred"), "merge", planted / "run", "--metric", f"{METRICS}:distance"]
    program += ["--minimize", "--out", out]
    with subprocess.Popen(
        list(map(str, program)), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not (trials.exists() and trials.read_bytes().count(b"\n") >= 20):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        f"error: stopped by ctrl-C; the best so far is in {out}; the same command goes on"
    )
    assert out.exists()
    assert '"failed": null' in trials.read_text().splitlines()[-1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_that_meets_a_finaliser_is_not_lost(planted: Path) -> None:
    """Python prints an exception of a finaliser, and goes on."""
    calls = [0]

    class Finaliser:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)

    def score(candidate: str) -> float:
        calls[0] += 1
        if calls[0] == 4:
            Finaliser()
        return float(calls[0])

    with pytest.raises(StoppedError, match=r"the best so far is in .*x\.safetensors"):
        dimred.merge(planted / "run", planted / "x.safetensors", metric=score, minimize=True, budget=20)
    assert calls == [4]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 2}, "of a search with another seed: 1, not 2;"),
        ({"minimize": False, "maximize": True}, "of a search with another better: 'lower', not 'higher'"),
        ({"last": 5}, "of a search with another digest of the checkpoints: '"),
    ],
)
def test_trials_of_another_search_are_not_mixed_in(planted: Path, change: dict, said: str) -> None:
    out = planted / "x.safetensors"
    same = {"metric": score_zero, "minimize": True, "budget": 5}
    dimred.merge(planted / "run", out, **same)
    out.unlink()
    Path(f"{out}.json").unlink()
    with pytest.raises(RunError) as refused:
        dimred.merge(planted / "run", out, **(same | change))
    assert said in str(refused.value)


def test_two_processes_do_not_write_the_same_trials(planted: Path) -> None:
    out = planted / "x.safetensors"

    def score(candidate: str) -> float:
        with pytest.raises(RunError, match=r"^--out is '.*x\.safetensors', where process \d+ on .* is at work"):
            dimred.merge(planted / "run", out, metric=score_zero, minimize=True)
        assert Path(candidate).exists()
        return 0.0

    dimred.merge(planted / "run", out, metric=score, minimize=True, budget=3)


def test_a_damaged_file_of_trials_is_named(planted: Path) -> None:
    out = planted / "x.safetensors"
    dimred.merge(planted / "run", out, metric=score_zero, minimize=True, budget=5)
    out.unlink()
    Path(f"{out}.json").unlink()
    trials = planted / "x.safetensors.merge" / "trials.jsonl"
    trials.write_text(trials.read_text().replace('"candidate"', '"candidates"', 1))
    with pytest.raises(RunError, match=r"trials\.jsonl is damaged .*; move it away"):
        dimred.merge(planted / "run", out, metric=score_zero, minimize=True, budget=5)


def test_a_disk_that_is_full_in_the_middle(planted: Path) -> None:
    """The scratch folder goes away: a fault, not a failed trial; what was scored is kept."""
    out = planted / "x.safetensors"
    count = [0]

    def score(tensors: dict[str, np.ndarray]) -> float:
        count[0] += 1
        if count[0] == 5:
            (planted / "x.safetensors.merge" / "candidate.safetensors").unlink()
            (planted / "x.safetensors.merge").rename(planted / "gone")
        return float(tensors["w"][0])

    with pytest.raises(FaultError, match="can't be written"):
        dimred.merge(planted / "run", out, metric=score, maximize=True, budget=20)
    assert not out.exists()
    (planted / "gone").rename(planted / "x.safetensors.merge")
    dimred.merge(planted / "run", out, metric=score, maximize=True, budget=20)
    assert count[0] < 40


def test_a_place_that_cannot_be_written_to_is_a_fault(planted: Path) -> None:
    out = planted / "x.safetensors"
    Path(f"{out}.merge").touch()
    with pytest.raises(
        FaultError, match=r"^--out is '.*x\.safetensors', which can't be written \(.*x\.safetensors\.merge"
    ):
        dimred.merge(planted / "run", out, metric=score_zero, minimize=True)
    longest = planted / f"{'n' * 243}.safetensors"  # there is no room for the ending of the record
    for options in ({}, {"metric": score_zero, "minimize": True}):
        with pytest.raises(FaultError, match="File name too long"):
            dimred.merge(planted / "run", longest, **options)
    assert not longest.exists()


def test_while_another_search_is_at_work_no_metric_is_started(planted: Path) -> None:
    out = planted / "x.safetensors"
    with (
        FolderLock(planted / "x.safetensors.merge", "--out is x"),
        pytest.raises(RunError, match=f"process {os.getpid()} on .* is at work"),
    ):
        dimred.merge(planted / "run", out, metric=f"{METRICS}:distance", minimize=True)
    assert not (planted / "x.safetensors.merge" / "metric.log").exists()
