"""Stage 2's run goes on over bad batches, and only with what it was begun with."""

import errno
import shutil
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest

import dimred
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError
from dimred.files.checksummed_json import read_checksummed
from dimred.files.metrics_file import read_metrics
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.weights.series import CheckpointSeries
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK, Points

STAGE_1: dict[str, Any] = {
    "epochs": 2,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0},
    "checkpoints": {"every_epochs": 1},
}
COOLDOWN: dict[str, Any] = {
    "epochs": 1, "start": "last", "residual": "continued", "n_components": 0, "reestimate_batches": 1,
}  # fmt: skip


class Spoilt(Points):
    """One image of the training split is not a number."""

    def __init__(self, data: Path, split: str, seed: int | None):
        super().__init__(data, split, seed)
        if split == "train":
            self._points[5] = np.nan


def settings(**options: Any) -> StageTwoConfig:
    return StageTwoConfig.model_validate(TASK | COOLDOWN | options)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of a stage 1 of two epochs."""
    ms.set_context(mode=ms.GRAPH_MODE)
    out = tmp_path_factory.mktemp("finished") / "one"
    stage_1_run(StageOneConfig.model_validate(TASK | STAGE_1))(out, False)
    return out / "checkpoint_stage_1"


def test_a_batch_whose_loss_is_not_a_number_is_skipped_and_the_run_goes_on(checkpoints: Path, tmp_path: Path) -> None:
    spoilt = {"data": TASK["data"] | {"dataset": "tests.run.test_search:Spoilt"}}
    run = stage_2_run(
        settings(keep_best=False, reestimate_batch_norm=False, **spoilt), checkpoints / "network-2_4.ckpt"
    )
    run(tmp_path / "two", False)
    outcomes = [record["outcome"] for record in read_metrics(tmp_path / "two" / "metrics.jsonl")]
    assert sorted(outcomes) == ["no_decrease", "no_decrease", "no_decrease", "non_finite_gradient"]


def test_a_disk_that_is_away_for_a_moment_does_not_cost_the_result(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, content: dict[str, Any]) -> None:
        monkeypatch.undo()
        raise OSError(errno.ESTALE, "away", str(path))

    monkeypatch.setattr("dimred.files.atomic._WAITS_SECONDS", (0.0,))
    monkeypatch.setattr("dimred.run.search.write_checksummed", write)
    stage_2_run(settings(), checkpoints / "network-2_4.ckpt")(tmp_path / "two", False)
    assert read_checksummed(tmp_path / "two" / "result.json")["epochs"] == 1


def test_a_run_does_not_go_on_with_weights_of_another_epoch(checkpoints: Path, tmp_path: Path) -> None:
    """Its rate would fall over other steps: it would not come to 0."""
    out = tmp_path / "two"
    stage_2_run(settings(), checkpoints / "network-1_4.ckpt")(out, False)
    before = results(out)
    with pytest.raises(ConfigError, match=r"WEIGHTS: .*4 updates.* -> .*8 updates"):
        stage_2_run(settings(), checkpoints / "network-2_4.ckpt")(out, True)
    assert not differences(results(out), before)


def test_the_best_average_is_a_point_of_its_own_and_the_search_goes_on_from_the_start(
    checkpoints: Path, tmp_path: Path
) -> None:
    """From weights that are so far off that the average of the snapshots is better than all that follows."""
    shutil.copytree(checkpoints.parent, tmp_path / "one")
    weights, out = tmp_path / "one" / "checkpoint_stage_1" / "network-2_4.ckpt", tmp_path / "two"
    arrays, rng = read_checkpoint(weights), np.random.default_rng(0)
    trained = list(read_checkpoint(weights.parent / "checkpoint_pca" / weights.name))
    noise = {name: 5 * rng.normal(size=arrays[name].shape).astype(np.float32) for name in trained}
    write_checkpoint(weights, arrays | {name: arrays[name] + noise[name] for name in trained})
    run = stage_2_run(settings(), weights)
    run(out, False)
    begun, found, result = read_checkpoint(weights), points(out), read_checksummed(out / "result.json")
    assert set(found) == {"average", "start", "1_4", "final"}
    assert all(np.array_equal(found["start"][name], begun[name]) for name in found["final"])  # statistics too
    series = CheckpointSeries.open(weights.parent / "checkpoint_pca")
    assert result["average_of"] == "uniform of 2 snapshots, steps 4 to 8"
    for name in trained:
        mean = np.mean([read_checkpoint(path)[name] for path in series.paths], axis=0, dtype=np.float64)
        np.testing.assert_array_equal(found["average"][name], mean.astype(np.float32))
        np.testing.assert_array_equal(found["final"][name], found["average"][name])
    assert [(one["name"], one["width"]) for one in result["kept_candidates"]] == [
        ("average", 2),
        ("start", 1),
        ("1", 1),
    ]
    assert result["kept"] == "average"
    before = results(out)
    run(out, True)  # the last epoch is recorded again
    assert not differences(results(out), before)


def points(out: Path) -> dict[str, dict[str, np.ndarray]]:
    """The checkpoints of a run by point."""
    folder = out / "checkpoint_stage_2"
    return {path.stem.partition("-")[2]: read_checkpoint(path) for path in folder.glob("*.ckpt")}


def test_of_one_snapshot_there_is_no_average_that_could_be_kept(tmp_path: Path) -> None:
    last = {"snapshots": {"first_epoch": 2}}
    stage_1_run(StageOneConfig.model_validate(TASK | STAGE_1 | last))(tmp_path / "one", False)
    stage_2_run(settings(), tmp_path / "one" / "checkpoint_stage_1" / "network-2_4.ckpt")(tmp_path / "two", False)
    result = read_checksummed(tmp_path / "two" / "result.json")
    assert [one["name"] for one in result["kept_candidates"]] == ["start", "1"]
    assert not (tmp_path / "two" / "checkpoint_stage_2" / "network-average.ckpt").exists()


def test_what_a_state_cannot_follow_is_refused(checkpoints: Path, tmp_path: Path) -> None:
    out, weights, matrix = tmp_path / "two", checkpoints / "network-2_4.ckpt", tmp_path / "pca_mat.npy"
    stage_2_run(settings(epochs=2), weights)(out, False)
    before = results(out)
    dimred.fit_basis(CheckpointSeries.open(checkpoints / "checkpoint_pca"), 1, out=matrix)
    for changed, basis, said in (
        ({"epochs": 1}, None, "epochs is 1, but the run has begun 2; --set epochs to that or more"),
        ({"n_components": 1}, matrix, "search and n_components can't change on the way"),
        ({"metric": "tests.helpers.tiny_task:network"}, None, "metric is network, but the run has measured accuracy"),
    ):
        resumed = stage_2_run(settings(**({"epochs": 2} | changed)), weights, basis, allowed=[*changed, "PCA_MAT"])
        with pytest.raises(ConfigError, match=said):
            resumed(out, True)
        assert not differences(results(out), before)


def test_the_result_has_the_epochs_of_a_run_that_was_made_longer(checkpoints: Path, tmp_path: Path) -> None:
    out = tmp_path / "two"
    stage_2_run(settings(), checkpoints / "network-2_4.ckpt")(out, False)
    stage_2_run(settings(epochs=2), checkpoints / "network-2_4.ckpt", allowed=["epochs"])(out, True)
    result = read_checksummed(out / "result.json")
    assert (result["epochs"], list(result["accuracy_by_epoch"])) == (2, ["1", "2"])
