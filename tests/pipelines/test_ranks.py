"""Both scripts with two ranks for real, from another directory, and every rank killed in turn."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dimred.runtime.metrics import read_metrics
from dimred.weights.series import CheckpointSeries
from tests.pipelines.conftest import REPOSITORY, STAGE_1, STAGE_2, TwoStages, run
from tests.runtime.test_launch import nothing_is_left, soon

TWO = ("--devices", "2", "--device-target", "CPU")
ONE_EPOCH = [f"--set={option}" for option in ("epochs=1", "snapshots.per_epoch=8", "snapshots.first_epoch=1")]
SMALL_BASIS = ["--set=n_components=6", "--set=epochs=1", "--set=reestimate_batches=2"]


def script(stage: int, *arguments: object) -> list[str]:
    return ["bash", str(REPOSITORY / "scripts" / f"run_stage_{stage}.sh"), *map(str, arguments)]


@pytest.fixture(scope="module")
def stages(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Where both stages ran, and what they printed."""
    folder = tmp_path_factory.mktemp("elsewhere") / "two ranks ü"
    folder.mkdir()
    (folder / "data é").symlink_to(digits)
    one = run(*script(1, "data é", "--config", STAGE_1, *TWO, "--set=data.batch_size=32", *ONE_EPOCH), cwd=folder)
    assert one.returncode == 0, one.stdout + one.stderr
    weights = "device0_stage_1/checkpoint_stage_1/resnet_small-1_74.ckpt"
    two = run(*script(2, "data é", weights, "--config", STAGE_2, *TWO, *SMALL_BASIS), cwd=folder)
    assert two.returncode == 0, two.stdout + two.stderr
    return folder, one.stdout, two.stdout


def test_the_log_lines_appear_once_and_in_every_ranks_log(stages: tuple[Path, str, str]) -> None:
    folder, one, two = stages
    assert len(re.findall(r"^epoch: 1 step: 74 loss is \d+\.\d+$", one, re.MULTILINE)) == 1
    for shown, stage in ((one, "stage_1"), (two, "stage_2")):
        accuracy = re.findall(r"^\{'Accuracy': 0\.\d+\}$", shown, re.MULTILINE)
        assert len(accuracy) == 1
        for rank in (0, 1):
            assert accuracy[0] in (folder / f"device{rank}_{stage}" / "train.log").read_text()
            environment = (folder / f"device{rank}_{stage}" / "env.log").read_text()
            assert f"RANK_ID={rank}\n" in environment


def test_rank_0_alone_saves(stages: tuple[Path, str, str]) -> None:
    folder, _, _ = stages
    saved = [path for path in folder.glob("device1_*/**/*") if path.suffix in (".ckpt", ".npy", ".h5")]
    assert saved == []
    assert len(CheckpointSeries.open(folder / "device0_stage_1" / "checkpoint_stage_1" / "checkpoint_pca")) == 8
    result = json.loads((folder / "device0_stage_2" / "result.json").read_text())
    assert result["steps"] == 4788 // 512
    assert result["accepted_steps"] > 0
    assert not (folder / "device1_stage_2" / "result.json").exists()


def test_a_second_run_asks_for_resume_or_another_folder(stages: tuple[Path, str, str]) -> None:
    folder, _, _ = stages
    again = run(*script(1, "data é", "--config", STAGE_1, *TWO, *ONE_EPOCH), cwd=folder)
    assert again.returncode == 2
    assert "holds earlier results; --resume goes on with them, --out starts in another folder" in again.stderr


@pytest.mark.parametrize(
    ("stage", "rank"),
    [
        pytest.param(1, 0, marks=pytest.mark.slow),
        (1, 1),
        (2, 0),
        pytest.param(2, 1, marks=pytest.mark.slow),
    ],
)
def test_a_killed_rank_ends_the_job_and_resume_goes_on(
    stage: int, rank: int, two_stages: TwoStages, tmp_path: Path
) -> None:
    if stage == 1:
        command = script(1, two_stages.data, "--config", STAGE_1, *TWO, "--set=data.batch_size=32", "--out", tmp_path)
        command.append("--set=epochs=2")
        begun = tmp_path / "device0_stage_1" / "metrics.jsonl"
    else:
        paths = (two_stages.data, two_stages.weights, two_stages.matrix)
        command = script(2, *paths, "--config", STAGE_2, *TWO, "--set=data.batch_size=32", "--out", tmp_path)
        command += ["--set=epochs=1", "--set=start=mean"]
        begun = tmp_path / "device0_stage_2" / "metrics.jsonl"
    log = tmp_path / "msg"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT)
    for _ in range(3000):
        if (begun.exists() and begun.stat().st_size > 0) or process.poll() is not None:
            break
        time.sleep(0.1)
    assert process.poll() is None, log.read_text()
    os.kill(program_of(tmp_path / f"device{rank}_stage_{stage}"), signal.SIGKILL)
    assert process.wait(timeout=30) == 128 + signal.SIGKILL
    assert f"error: rank {rank} of 2 was killed by SIGKILL; the other ranks were ended." in log.read_text()
    assert soon(lambda: nothing_is_left(tmp_path))
    again = run(*command, "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert re.search(r"^\{'Accuracy': 0\.\d+\}$", again.stdout, re.MULTILINE)
    records = read_metrics(begun)
    expected = [74, 148] if stage == 1 else list(range(1, 75))
    assert [record["step"] for record in records] == expected


def program_of(folder: Path) -> int:
    """The process whose last argument is this folder: ``pipelines.stage_* ... --out FOLDER``."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in arguments and b"--out" in arguments:
            return int(process.name)
    raise AssertionError(f"no process writes to {folder}")
