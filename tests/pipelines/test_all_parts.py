"""Both stages with every part of the step on at once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.pipelines.stage_1 import stage_1
from dimred.pipelines.stage_2 import stage_2
from dimred.run_files.metrics_file import read_metrics
from dimred.run_files.stage_two_result import StageTwoResult
from tests.helpers.tiny_task import TASK

STEPS = 3  # 8 micro-batches of 3, in groups of three; the last group has two
EPOCHS = 4
PARTS: dict[str, Any] = {
    "accumulation": 3,
    "precision": {"level": "O2", "casts": {"3": "float32"}},
    "loss_scale": {"name": "dynamic", "scale": 1e30, "largest": 1e30, "factor": 2.0**20},
    "clipping": {"norm": 1.0},
    "ema": {"decay": 0.9},
}
DATA = {"data": TASK["data"] | {"batch_size": 3}}
ONE = {
    "epochs": EPOCHS,
    "snapshots": {"per_epoch": 3, "content": "mean"},
    "checkpoints": {"every_epochs": 2, "keep": 9},
    "optimizer": {"name": "adamw"},
    "schedule": {"name": "cosine", "peak": 0.02, "warmup_epochs": 1},
}
SEARCH = {"epochs": 2, "reestimate_batches": 2, "search": {"n_components": 4}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a stage 1 with the configuration ``one.yaml``, whose stage 2 is a search."""
    folder = tmp_path_factory.mktemp("all_parts")
    (folder / "one.yaml").write_text(yaml.safe_dump(TASK | DATA | PARTS | {"stage_1": ONE, "stage_2": SEARCH}))
    stage_1(folder, folder / "one.yaml", folder / "one")
    return folder


def checkpoint(run: Path, epoch: int = EPOCHS) -> Path:
    return run / "one" / "checkpoint_stage_1" / f"network-{epoch}_{STEPS}.ckpt"


@pytest.mark.slow
def test_stage_1_reports_what_its_parts_did(run: Path) -> None:
    records = read_metrics(run / "one" / "metrics.jsonl")
    assert [record["step"] for record in records] == [epoch * STEPS for epoch in range(1, EPOCHS + 1)]
    last = records[-1]
    assert last["n_overflows"] > 0  # the scale began far too large
    assert last["loss_scale"] < 1e30
    assert last["grad_norm"] > 0
    assert 0 <= last["metrics"]["accuracy"]["as_trained"] <= 1
    assert 0 <= last["metrics"]["accuracy"]["ema"] <= 1
    saved = read_checkpoint(checkpoint(run))
    assert int(saved["ema.updates"]) == EPOCHS * STEPS - last["n_overflows"] == int(saved["global_step"].item())
    assert saved["loss_scale.overflows"] == last["n_overflows"]
    assert all(np.isfinite(value).all() for value in saved.values())


@pytest.mark.slow
def test_stage_1_begun_with_a_checkpoint_goes_on_as_if_it_had_not_stopped(run: Path, tmp_path: Path) -> None:
    stage_1(run, run / "one.yaml", tmp_path, checkpoint(run, 2))
    found = read_checkpoint(tmp_path / "checkpoint_stage_1" / checkpoint(run).name)
    expected = read_checkpoint(checkpoint(run))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, key)


@pytest.mark.slow
def test_a_search_has_all_parts_and_measures_the_average_beside_the_raw_weights(run: Path, tmp_path: Path) -> None:
    stage_2(run, checkpoint(run), out=tmp_path / "two")
    result = StageTwoResult.read(tmp_path / "two" / "result.json")
    points = result.main.by_point
    assert [point for point, values in points.items() if "ema" in values] == ["start", "1", "2"]
    assert points["start"]["ema"] == pytest.approx(points["start"]["as_trained"])
    records = read_metrics(tmp_path / "two" / "metrics.jsonl")
    assert len(records) == 2 * STEPS
    assert records[-1]["n_overflows"] > 0
    n_accepted = sum(record["outcome"] == "accepted" for record in records)
    saved = read_checkpoint(tmp_path / "two" / "checkpoint_stage_2" / f"network-2_{STEPS}.ckpt")
    assert int(saved["loss_scale.overflows"]) == records[-1]["n_overflows"]
    assert int(saved["ema.updates"]) == n_accepted > 0


@pytest.mark.slow
def test_a_cooldown_takes_over_batches_and_the_parts_of_the_step(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ["method=cooldown", "epochs=1", "reestimate_batches=2"]
    stage_2(run, checkpoint(run, 2), out=tmp_path / "two", overrides=options)
    config = load_config(StageTwoConfig, tmp_path / "two" / "config.yaml")
    assert config.data.batch_size == 3
    assert config.model_dump(include={*PARTS}) == load_config(StageOneConfig, run / "one.yaml").model_dump(
        include={*PARTS}
    )
    assert json.loads((tmp_path / "two" / "result.json").read_text())["steps"] == STEPS
    begun = read_checkpoint(checkpoint(run, 2))
    saved = read_checkpoint(tmp_path / "two" / "checkpoint_stage_2" / f"network-1_{STEPS}.ckpt")
    assert int(saved["ema.updates"]) > int(begun["ema.updates"])  # it continues stage 1's count
    assert int(saved["loss_scale.overflows"]) >= int(begun["loss_scale.overflows"]) > 0
    assert "stage 1 made" not in caplog.text
