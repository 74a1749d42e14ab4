"""Merges that are killed, stopped or disturbed resume, and neither lose nor mix scores."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import ConfigError, FaultError, RunError, StoppedError
from dimred.io.atomic import FolderLock
from tests.helpers.commands import dimred as command
from tests.merging.problems import METRICS, score_zero


def remove_result(out: Path) -> None:
    out.unlink()
    Path(f"{out}.json").unlink()


def test_what_was_scored_before_a_kill_is_not_scored_again(workspace: Path) -> None:
    """After two SIGKILLs the scores and the result are those of an undisturbed call."""
    arguments = ["merge", workspace / "run", "--metric", f"{METRICS}:distance", "--minimize"]
    whole = workspace / "whole.safetensors"
    assert command(*arguments, "--out", whole).returncode == 0
    out = workspace / "killed.safetensors"
    scores = workspace / "killed.safetensors.merge" / "scores.jsonl"
    for lines in (5, 20):
        program = [Path(sys.executable).with_name("dimred"), *arguments, "--out", out]
        program += ["--resume"] if scores.exists() else []
        with subprocess.Popen(list(map(str, program)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            while not (scores.exists() and scores.read_bytes().count(b"\n") >= lines):
                assert process.poll() is None
                time.sleep(0.01)
            process.kill()
    assert not out.exists()
    with scores.open("ab") as file:
        file.write(b'{"average": {"kin')  # half a line
    call = command(*arguments, "--out", out, "--resume", "--json")
    assert call.returncode == 0, call.stderr
    assert out.read_bytes() == whole.read_bytes()
    assert scores.read_bytes() == (workspace / "whole.safetensors.merge" / "scores.jsonl").read_bytes()
    record, first = json.loads(call.stdout), json.loads((workspace / "whole.safetensors.json").read_text())
    assert record.pop("command") == f"{first.pop('command')} --resume".replace(str(whole), str(out))
    assert record == first
    assert sorted(path.name for path in scores.parent.iterdir()) == sorted(
        path.name for path in (workspace / "whole.safetensors.merge").iterdir()
    )


def test_a_result_that_another_call_has_just_written_is_kept(workspace: Path) -> None:
    out = workspace / "x.safetensors"

    def another_is_faster(tensors: dict[str, np.ndarray]) -> float:
        out.write_bytes(b"the other's")
        return float(tensors["w"][0])

    with pytest.raises(ConfigError, match="exists already"):
        dimred.merge(workspace / "run", out, metric=another_is_faster, minimize=True)
    assert out.read_bytes() == b"the other's"


def test_ctrl_c_keeps_the_scores_and_says_how_to_go_on(workspace: Path) -> None:
    error = [12]

    def score(tensors: dict[str, np.ndarray]) -> float:
        error[0] -= 1
        if error[0] == 0:
            raise KeyboardInterrupt
        return float(tensors["w"][0])

    out = workspace / "x.safetensors"
    with pytest.raises(StoppedError) as info:
        dimred.merge(workspace / "run", out, metric=score, minimize=True)
    assert str(info.value) == (
        f"stopped by ctrl-C; 11 scores are in {out}.merge; resume=True continues, and with budget=11 it chooses among "
        "these"
    )
    assert not out.exists()
    record = dimred.merge(workspace / "run", out, metric=score, minimize=True, budget=11, resume=True)
    assert error == [0]
    assert record["evaluations"] == 11
    remove_result(out)
    record = dimred.merge(workspace / "run", out, metric=score, minimize=True, resume=True)
    assert record["evaluations"] == 11 - error[0]


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")]
)
def test_a_signal_keeps_the_scores_and_leaves_no_candidate(workspace: Path, number: signal.Signals, name: str) -> None:
    """The metric's process has a session of its own, so the same ctrl-C does not kill it; it ends with the merge."""
    out = workspace / "x.safetensors"
    scores = workspace / "x.safetensors.merge" / "scores.jsonl"
    program = [Path(sys.executable).with_name("dimred"), "merge", workspace / "run", "--metric", f"{METRICS}:distance"]
    words = list(map(str, [*program, "--minimize", "--out", out]))
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while not (scores.exists() and scores.read_bytes().count(b"\n") >= 5):
            time.sleep(0.01)
        os.killpg(process.pid, number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert errors.splitlines()[-1].startswith(f"error: stopped by {name}; ")
    assert '"score": {"value": ' in scores.read_text().splitlines()[-1]
    assert not list(scores.parent.glob("candidate-*"))


@pytest.mark.parametrize(
    ("change", "damage", "words"),
    [
        ({"minimize": False, "maximize": True}, (), "to a merge with a different better: 'lower', not 'higher'"),
        ({"last": 5}, (), "to a merge with a different digest of the checkpoints: '"),
        ({}, ('"average"', '"averages"'), "scores.jsonl can't be used (KeyError: 'average'); move it away"),
        ({}, (r"\A.*\n", "[1]\n"), "scores.jsonl can't be used (ValueError: it is not in the format 'dimred scores'"),
    ],
)
def test_scores_of_another_merge_or_damaged_ones_are_not_mixed_in(
    workspace: Path, change: dict, damage: tuple[str, ...], words: str
) -> None:
    out = workspace / "x.safetensors"
    same = {"metric": score_zero, "minimize": True, "budget": 5}
    dimred.merge(workspace / "run", out, **same)
    remove_result(out)
    if damage:
        scores = workspace / "x.safetensors.merge" / "scores.jsonl"
        scores.write_text(re.sub(*damage, scores.read_text(), count=1))
    with pytest.raises(RunError) as error:
        dimred.merge(workspace / "run", out, **(same | change), resume=True)
    assert words in str(error.value)


def test_two_processes_do_not_write_the_same_scores(workspace: Path) -> None:
    out = workspace / "x.safetensors"
    with (
        FolderLock(workspace / "x.safetensors.merge", "--out"),
        pytest.raises(RunError, match=rf"^out is '.*x\.safetensors', where process {os.getpid()} on .* is at work"),
    ):
        dimred.merge(workspace / "run", out, metric=f"{METRICS}:distance", minimize=True)
    assert not (workspace / "x.safetensors.merge" / "metric.log").exists()


def test_a_disk_that_is_full_in_the_middle(workspace: Path) -> None:
    """The scratch folder goes away: that is a fault, not a failed trial, and earlier scores are kept."""
    out = workspace / "x.safetensors"
    count = [0]

    def score(tensors: dict[str, np.ndarray]) -> float:
        count[0] += 1
        if count[0] == 5:
            (workspace / "x.safetensors.merge").rename(workspace / "gone")
        return float(tensors["w"][0])

    with pytest.raises(FaultError, match="can't be written"):
        dimred.merge(workspace / "run", out, metric=score, maximize=True)
    assert not out.exists()
    (workspace / "gone").rename(workspace / "x.safetensors.merge")
    record = dimred.merge(workspace / "run", out, metric=score, maximize=True, resume=True)
    assert record["evaluations"] == count[0] - 1


def test_a_place_that_cannot_be_written_to_is_a_fault(workspace: Path) -> None:
    out = workspace / "x.safetensors"
    Path(f"{out}.merge").touch()
    with pytest.raises(
        FaultError, match=r"^out is '.*x\.safetensors', which can't be written \(.*x\.safetensors\.merge"
    ):
        dimred.merge(workspace / "run", out, metric=score_zero, minimize=True)
    longest = workspace / f"{'n' * 243}.safetensors"  # the record's longer ending does not fit
    for options in ({}, {"metric": score_zero, "minimize": True}):
        with pytest.raises(FaultError, match="File name too long"):
            dimred.merge(workspace / "run", longest, **options)
    assert not longest.exists()
