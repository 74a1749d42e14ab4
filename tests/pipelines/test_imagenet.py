"""The production recipe, ResNet-50 at 224 pixels on real JPEGs, on two ranks and only shortened by --set."""

import json
import re

import pytest

from dimred.checkpoints.series import CheckpointSeries
from tests.helpers.commands import TWO_RANKS, run, script
from tests.helpers.imagenet_tree import write_imagenet_tree

pytestmark = pytest.mark.slow

SHORT = ("--set=data.batch_size=2", "--set=data.workers=1", "--set=seed=3")
STAGE_1 = ("epochs=1", "schedule.total_epochs=6", "snapshots.per_epoch=3", "snapshots.first_epoch=1")
STAGE_2 = (
    "epochs=1",
    "search.n_components=2",
    "reestimate_batches=1",
    "search.max_trials=2",
)


def test_both_scripts_from_start_to_end(tmp_path):
    write_imagenet_tree(tmp_path / "imagenet", n_classes=2, train=6, val=2)
    sets = [f"--set={option}" for option in STAGE_1]
    one = run(*script(1, "imagenet", "--config", "imagenet", *TWO_RANKS, *SHORT, *sets), cwd=tmp_path, status=0)
    log = (tmp_path / "device0_stage_1" / "train.log").read_text()
    assert re.search(r"^epoch: 1 step: 3 loss is \d+\.\d+$", log, re.MULTILINE)
    assert "loss is" not in one.stdout
    checkpoints = tmp_path / "device0_stage_1" / "checkpoint_stage_1"
    series = CheckpointSeries.open(checkpoints / "checkpoint_pca")
    assert series.layout.size == 25_557_032 + 2049  # ResNet-50 with 1001 outputs
    sets = [f"--set={option}" for option in STAGE_2]
    weights = checkpoints / "resnet50-1_3.ckpt"
    two = run(*script(2, "imagenet", weights, *TWO_RANKS, *SHORT, *sets), cwd=tmp_path, status=0)
    assert re.search(r"^\{'Accuracy': [01]\.\d+\}$", two.stdout, re.MULTILINE)
    result = json.loads((tmp_path / "device0_stage_2" / "result.json").read_text())
    assert result["steps"] == 3
    assert result["basis"]["n_weights"] == series.layout.size
