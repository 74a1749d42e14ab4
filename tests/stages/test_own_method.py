"""A user's own method of stage 2 is run, resumed, compared and reported as dimred's own are."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dimred as library
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import ConfigError, SeriesError
from dimred.pipelines.stage_2 import stage_2
from dimred.run_files.metrics_file import read_metrics
from dimred.run_files.stage_two_result import StageTwoResult
from tests.helpers.commands import REPOSITORY, dimred, dimred_here
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import dying
from tests.stages.snapshot_average import AverageMethod

OWN = "method=tests.stages.snapshot_average:average"


def assert_is_the_mean(network: Path, checkpoints: Path) -> None:
    """Check that the trained weights are the mean of the two snapshots, and that the statistics are new ones."""
    found, last = read_checkpoint(network), read_checkpoint(checkpoints / "network-2_4.ckpt")
    first, second = map(read_checkpoint, CheckpointSeries.open(checkpoints / "checkpoint_pca").paths)
    for name in first:
        mean = (first[name].astype(np.float64) + second[name]) / 2
        np.testing.assert_array_equal(found[name], mean.astype(np.float32))
    statistics = [name for name in found if "moving" in name]
    assert len(statistics) == 2
    assert all((found[name] != last[name]).any() for name in statistics)


@pytest.mark.slow
def test_the_command_runs_it(checkpoints: Path, tmp_path: Path) -> None:
    weights, out = checkpoints / "network-2_4.ckpt", tmp_path / "device0_stage_2"
    sets = [f"--set={option}" for option in (OWN, "average.newest=2", "mode=pynative")]
    options = [*sets, "--devices", 1, "--device-target", "CPU", "--out", tmp_path]
    shown = dimred("train", "stage-2", tmp_path, weights, *options, cwd=REPOSITORY, status=0).stdout
    assert "0 epochs of 4 steps, 0 in all" in shown
    assert_is_the_mean(out / "checkpoint_stage_2" / "network-final.ckpt", checkpoints)
    result = StageTwoResult.read(out / "result.json")
    assert (result.epochs, result.steps, result.passes, list(result.main.by_point)) == (0, 0, 0, ["start", "final"])
    assert read_metrics(out / "metrics.jsonl") == []


def test_it_is_resumed_to_the_same_bytes_and_with_the_same_snapshots_alone(checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints.parent, tmp_path / "one")
    weights, out = tmp_path / "one" / "checkpoint_stage_1" / "network-2_4.ckpt", tmp_path / "two"
    arguments: dict[str, Any] = {"data": tmp_path, "weights": weights}
    stage_2(**arguments, overrides=[OWN], out=tmp_path / "whole")
    with dying(AverageMethod, "finish"):
        stage_2(**arguments, overrides=[OWN], out=out)
    with pytest.raises(ConfigError, match=r"(?m)^  average\.newest: 2 -> 1$"):
        stage_2(**arguments, overrides=["average.newest=1"], out=out, resume=True)
    killed = shutil.copytree(out, tmp_path / "killed")
    stage_2(**arguments, out=out, resume=True)
    assert not differences(results(out), results(tmp_path / "whole"))
    stage_2(**arguments, out=out, resume=True)  # of a run that has ended
    assert not differences(results(out), results(tmp_path / "whole"))
    stage_2(**arguments, overrides=[OWN], out=tmp_path / "trial", fast_dev_run=True)
    assert StageTwoResult.read(tmp_path / "trial" / "result.json").epochs == 0
    series = CheckpointSeries.resume(weights.parent / "checkpoint_pca")
    series.rewind(4)
    other = {name: value + 1 for name, value in read_checkpoint(series.paths[0]).items()}
    series.append(other, 8, 2)
    with pytest.raises(ConfigError, match=r"(?m)^  SNAPSHOTS: \w+ \(.*\) -> \w+ \(.*\)$"):
        stage_2(**arguments, out=killed, resume=True)


def test_what_it_needs_is_checked_before_anything_is_written(checkpoints: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"data": tmp_path, "weights": checkpoints / "network-2_4.ckpt", "out": tmp_path / "two"}
    with pytest.raises(ConfigError) as refused:
        stage_2(**arguments, pca_mat=tmp_path / "pca_mat.npy", overrides=[OWN, "average.newest=3"])
    assert "1. average.newest is 3, but stage 1 kept 2 snapshots" in str(refused.value)
    assert "2. PCA_MAT is" in str(refused.value)
    assert not (tmp_path / "two").exists()


@pytest.mark.slow
def test_it_is_compared_and_reported(checkpoints: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = [checkpoints.parent]
    with pytest.raises(SeriesError, match=r"average\.newest is 3, but stage 1 kept 2 snapshots"):
        library.compare("nowhere", runs, out=out, methods=["stage_2"], overrides=[OWN, "average.newest=3"])
    with pytest.raises(ConfigError, match="it takes as many passes as stage 2's training, but method a"):
        library.compare("nowhere", runs, out=out, methods=["cooldown"], overrides=[OWN])
    summary = library.compare("nowhere", runs, out=out, methods=["last", "stage_2"], overrides=[OWN])
    rows = {row["method"]: row for row in summary["rows"]}
    assert rows["stage_2"]["title"] == "stage 2: average"
    assert rows["stage_2"]["passes"] == rows["last"]["passes"] == 2
    assert "| **stage 2: average** | 2.0 |" in (out / "compare.md").read_text()
    [network] = [Path(run["network"]) for run in summary["runs"] if run["method"] == "stage_2"]
    assert_is_the_mean(network, checkpoints)
    printed = dimred_here("report", network.parents[1], "--grid", 3, "--batches", 1, status=0).stdout
    page = Path(printed.split()[1]).read_text()
    assert f"Use {network}: " in page
    assert "The network is the mean of the newest 2 snapshots of stage 1." in page
