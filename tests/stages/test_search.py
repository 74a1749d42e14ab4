"""What a search begins from and keeps."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, config_text
from dimred.errors import ConfigError
from dimred.pipelines.stage_2 import stage_2
from dimred.run_files.metrics_file import read_metrics
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.subspace.fit import fit_basis
from tests.helpers.tiny_run import stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK

STAGE_1: dict[str, Any] = {
    "epochs": 2,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0},
    "checkpoints": {"every_epochs": 1},
    "snapshots": {"per_epoch": 2},
}
ONE = StageOneConfig.model_validate(TASK | STAGE_1)
SMALLER = r"use --set search\.n_components=1, or make a larger basis: dimred pca --n-components 2$"
SEARCH: dict[str, Any] = {"epochs": 1, "search": {"n_components": 2}}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a stage 1, fit the basis of its snapshots beside its folder, and return its last full checkpoint."""
    out = tmp_path_factory.mktemp("searched") / "one"
    stage_1_run(ONE)(out, False)
    checkpoints = out / "checkpoint_stage_1"
    fit_basis(CheckpointSeries.open(checkpoints / "checkpoint_pca"), 2, out=out.parent / "pca_mat.npy")
    return checkpoints / "network-2_4.ckpt"


def searched(weights: Path, out: Path, **options: Any) -> Path:
    """Run a stage 2 with a search, and return the folder of its checkpoints."""
    config = StageTwoConfig.model_validate(TASK | SEARCH | options)
    stage_2_run(config, weights, weights.parents[2] / "pca_mat.npy")(out, False)
    return out / "checkpoint_stage_2"


@pytest.mark.slow
def test_a_moving_average_begins_at_weights_from_anywhere(weights: Path, tmp_path: Path) -> None:
    moved = {name: value + np.float32(0.5) for name, value in read_checkpoint(weights).items() if value.dtype == "f4"}
    write_checkpoint(tmp_path / "moved.ckpt", read_checkpoint(weights) | moved)
    config = StageTwoConfig.model_validate(TASK | SEARCH | {"ema": {"decay": 0.99, "ramp": False}})
    stage_2_run(config, tmp_path / "moved.ckpt", weights.parents[2] / "pca_mat.npy")(tmp_path / "two", False)
    found = read_checkpoint(tmp_path / "two" / "checkpoint_stage_2" / "network-start.ckpt")
    averaged = [name for name in found if name.startswith("ema.") and name != "ema.updates"]
    assert averaged
    for name in averaged:
        np.testing.assert_array_equal(found[name], found[name.removeprefix("ema.")], err_msg=name)
    assert (found["0.weight"] != read_checkpoint(weights)["0.weight"]).any()


def test_a_search_that_stops_within_an_epoch_keeps_its_last_steps(weights: Path, tmp_path: Path) -> None:
    never = {"n_components": 2, "sigma": 0.999999, "max_trials": 1, "max_rejected_steps": 2, "alpha": 0.01}
    folder = searched(weights, tmp_path / "two", search=never, epochs=2)
    result = StageTwoResult.read(tmp_path / "two" / "result.json")
    assert "2 steps in a row were rejected" in result.stopped
    assert 0 < result.epochs < 1
    before, after = (read_checkpoint(folder / f"network-{point}.ckpt") for point in ("start", "1_4"))
    assert not result.choices
    assert read_checkpoint(folder / "network-final.ckpt")["0.weight"].tobytes() == after["0.weight"].tobytes()
    assert (before["0.weight"] != after["0.weight"]).any()  # a rejected step moves outside the subspace
    assert result.training_seconds > 0


def test_the_lines_of_an_epoch_that_a_search_stops_in_count_its_own_steps(
    weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    never = {"n_components": 2, "sigma": 0.999999, "max_trials": 1, "max_rejected_steps": 4, "alpha": 0.0}
    searched(weights, tmp_path / "two", search=never, epochs=3)
    records = read_metrics(tmp_path / "two" / "metrics.jsonl")
    for pattern in (r" *accepted \d of (\d) steps", r"epoch: \d step: (\d) loss is", r"epoch \d/3  step (\d)  loss"):
        steps = [int(match[1]) for line in caplog.messages if (match := re.match(pattern, line))]
        assert steps == [sum(record["epoch"] == epoch for record in records) for epoch in range(1, len(steps) + 1)]
        assert steps[-1] < 4 == steps[0]


def test_a_basis_that_a_killed_start_has_left_is_fitted_again_but_not_one_in_use(weights: Path, tmp_path: Path) -> None:
    out, config = tmp_path / "two", tmp_path / "two.yaml"
    config.write_text(config_text(StageTwoConfig.model_validate(TASK | SEARCH)))
    out.mkdir()
    for name in ("pca_mat.npy", "pca_mat.h5"):
        shutil.copy(weights.parents[2] / name, out / name)
    arguments: dict[str, Any] = {
        "data": tmp_path,
        "weights": weights,
        "config_file": config,
        "out": out,
        "resume": True,
    }
    stage_2(**arguments, overrides=["search.n_components=1"])
    assert np.load(out / "pca_mat.npy").shape[0] == 1
    with pytest.raises(ConfigError, match=r"(?m)^  search\.n_components: 1 -> 2$"):
        stage_2(**arguments)
    assert np.load(out / "pca_mat.npy").shape[0] == 1


def test_a_matrix_with_fewer_rows_than_the_recipe_asks_for_is_named_with_both_remedies(
    weights: Path, tmp_path: Path
) -> None:
    fit_basis(CheckpointSeries.open(weights.parent / "checkpoint_pca"), 1, out=tmp_path / "one.npy")
    config = tmp_path / "two.yaml"
    config.write_text(config_text(StageTwoConfig.model_validate(TASK | SEARCH)))
    arguments: dict[str, Any] = {"data": tmp_path, "weights": weights, "config_file": config, "out": tmp_path / "two"}
    with pytest.raises(ConfigError, match=rf"search\.n_components is 2, but .*one\.npy has 1; {SMALLER}"):
        stage_2(**arguments, pca_mat=tmp_path / "one.npy")
    assert not (tmp_path / "two" / "checkpoint_stage_2").exists()
    stage_2(**arguments, pca_mat=tmp_path / "one.npy", overrides=["search.n_components=1"])
    assert StageTwoResult.read(tmp_path / "two" / "result.json").basis["n_components"] == 1
