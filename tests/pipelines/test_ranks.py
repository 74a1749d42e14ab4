"""Both scripts with two ranks for real, from another directory."""

import json
import re
from pathlib import Path

import pytest

from dimred.weights.series import CheckpointSeries
from tests.helpers.commands import STAGE_1, STAGE_2, TWO_RANKS, run, script

ONE_EPOCH = [f"--set={option}" for option in ("epochs=1", "snapshots.per_epoch=8", "snapshots.first_epoch=1")]
SMALL_BASIS = ["--set=n_components=6", "--set=epochs=1", "--set=reestimate_batches=2"]


@pytest.fixture(scope="module")
def stages(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Where both stages ran, and what they printed."""
    folder = tmp_path_factory.mktemp("elsewhere") / "two ranks ü"
    folder.mkdir()
    (folder / "data é").symlink_to(digits)
    one = run(*script(1, "data é", "--config", STAGE_1, *TWO_RANKS, "--set=data.batch_size=32", *ONE_EPOCH), cwd=folder)
    assert one.returncode == 0, one.stdout + one.stderr
    weights = "device0_stage_1/checkpoint_stage_1/resnet_small-1_74.ckpt"
    two = run(*script(2, "data é", weights, "--config", STAGE_2, *TWO_RANKS, *SMALL_BASIS), cwd=folder)
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
    again = run(*script(1, "data é", "--config", STAGE_1, *TWO_RANKS, *ONE_EPOCH), cwd=folder)
    assert again.returncode == 2
    assert "holds earlier results; --resume goes on with them, --out starts in another folder" in again.stderr
