"""Bad input ends with one clear line and exit status 2, and leaves nothing. ``tests/stages`` has every kind."""

import shutil
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from dimred.run_files.run_names import ENVIRONMENT_LOG, LOCK, RANK_LOG
from tests.helpers.commands import DIGITS, SHORT, TwoStages, dimred, program


def assert_said_once(done: CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for words in said:
        assert words in lines[0]
    assert "error" not in done.stdout


def files_below(folder: Path) -> dict[str, bytes]:
    """Read all files by name, except the lock, which names its last holder, and logs, which keep every attempt."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.name not in (LOCK, RANK_LOG, ENVIRONMENT_LOG)
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_program_started_directly_refuses_bad_input(tmp_path: Path) -> None:
    done = program("stage_1", "nowhere", "--config", DIGITS, "--out", "out", cwd=tmp_path)
    assert_said_once(done, "nowhere", "not a folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_an_error_that_every_rank_finds_is_printed_once(devices: int, digits: Path, tmp_path: Path) -> None:
    command = ("train", "stage-1", digits, "--config", DIGITS, "--device-target", "CPU", "--devices", devices)
    done = dimred(*command, "--set=model.n_classes=8", "--out", "new/out", cwd=tmp_path)
    assert_said_once(done, "10 classes", "n_classes 8:")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_error_that_only_rank_0_finds_is_printed_once(two_stages: TwoStages, tmp_path: Path) -> None:
    np.save(tmp_path / "wrong.npy", np.zeros((32, 19953), np.float32))
    before = files_below(tmp_path)
    done = dimred(
        "train",
        "stage-2",
        two_stages.data,
        two_stages.weights,
        "wrong.npy",
        "--config",
        DIGITS,
        "--device-target",
        "CPU",
        "--devices",
        2,
        cwd=tmp_path,
    )
    assert_said_once(done, "wrong.npy", "19,953", "19,954")
    assert files_below(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.npy"]


@pytest.mark.slow
def test_a_run_that_is_not_resumed_keeps_its_files(two_stages: TwoStages, tmp_path: Path) -> None:
    run = tmp_path / "device0_stage_1"
    shutil.copytree(two_stages.stage_1, run)
    (run / "train.log").write_text("error: of an earlier attempt\n")
    before = files_below(tmp_path)
    command = ("train", "stage-1", two_stages.data, "--config", DIGITS, "--device-target", "CPU", "--devices", 1)
    assert_said_once(dimred(*command, cwd=tmp_path), "earlier results")
    done = dimred(*command, *SHORT, "--resume", "--set=seed=99", cwd=tmp_path, status=2)
    assert "error" not in done.stdout
    lines = done.stderr.splitlines()
    assert lines[0].endswith("was begun with other values:")
    assert lines[1] == "  seed: 1 -> 99"
    assert done.stderr.count("1 -> 99") == 1
    assert files_below(tmp_path) == before
    assert (run / "train.log").read_text().startswith("error: of an earlier attempt\n")
    dimred("train", "stage-1", two_stages.data, "--resume", "--set=epochs=3", cwd=tmp_path, status=0)
