"""Both stages on a few digits with every part of the step on at once."""

import json
from pathlib import Path

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.config import StageTwoConfig, load_config
from dimred.io.metrics_file import read_metrics
from tests.helpers.commands import CONFIGS, STAGE_1, STAGE_2, program

PARTS = [
    f"--set={option}"
    for option in (
        "data.batch_size=8",
        "accumulation=2",
        "precision.level=O2",
        "precision.casts.classifier=float32",
        "loss_scale.name=dynamic",
        "loss_scale.scale=1.0e+30",
        "loss_scale.largest=1.0e+30",
        "loss_scale.factor=1048576.0",
        "clipping.norm=1.0",
        "clipping.value=0.5",
        "ema.decay=0.9",
    )
]
ONE = [
    f"--set={option}"
    for option in (
        "epochs=2",
        "snapshots.per_epoch=5",
        "snapshots.first_epoch=1",
        "checkpoints.every_epochs=1",
        "optimizer.name=adamw",
        "schedule.name=cosine",
        "schedule.peak=0.02",
        "schedule.warmup_epochs=1",
    )
]
STEPS = 13  # 25 micro-batches of 8, in groups of two; the last group has one


@pytest.fixture(scope="module")
def stage_1(few_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("all_parts")
    done = program("stage_1", few_digits, "--config", STAGE_1, "--out", folder / "one", *ONE, *PARTS, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "with the average of the weights (EMA)" in done.stdout
    return folder / "one"


def test_stage_1_reports_what_its_parts_did(stage_1: Path) -> None:
    records = read_metrics(stage_1 / "metrics.jsonl")
    assert [record["step"] for record in records] == [STEPS, 2 * STEPS]
    last = records[-1]
    assert last["n_overflows"] > 0  # the scale began far too large
    assert last["loss_scale"] < 1e30
    assert last["grad_norm"] > 0
    assert 0 <= last["accuracy"] <= 1
    assert 0 <= last["ema_accuracy"] <= 1
    saved = read_checkpoint(stage_1 / "checkpoint_stage_1" / f"resnet_small-2_{STEPS}.ckpt")
    assert int(saved["ema.updates"]) == 2 * STEPS - last["n_overflows"] == int(saved["global_step"].item())
    assert saved["loss_scale.overflows"] == last["n_overflows"]
    assert all(np.isfinite(value).all() for value in saved.values())


def test_stage_1_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(
    stage_1: Path, few_digits: Path, tmp_path: Path
) -> None:
    folder = stage_1 / "checkpoint_stage_1"
    done = program(
        "stage_1", few_digits, "--config", STAGE_1, "--out", tmp_path / "rest",
        "--from", folder / f"resnet_small-1_{STEPS}.ckpt", *ONE, *PARTS, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name = f"resnet_small-2_{STEPS}.ckpt"
    resumed = read_checkpoint(tmp_path / "rest" / "checkpoint_stage_1" / name)
    uninterrupted = read_checkpoint(folder / name)
    assert resumed.keys() == uninterrupted.keys()
    for key, value in uninterrupted.items():
        np.testing.assert_array_equal(resumed[key], value, key)


def test_stage_2_runs_with_all_parts_and_evaluates_the_average_beside_the_raw_weights(
    stage_1: Path, few_digits: Path, tmp_path: Path
) -> None:
    weights = stage_1 / "checkpoint_stage_1" / f"resnet_small-2_{STEPS}.ckpt"
    options = ["--set=epochs=1", "--set=search.n_components=8", "--set=start=last", "--set=reestimate_batches=2"]
    done = program(
        "stage_2", few_digits, weights, "--config", STAGE_2, "--out", tmp_path / "two", *options, *PARTS, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    assert list(result["ema_accuracy_by_point"]) == ["start", "1"]
    assert result["ema_accuracy_by_point"]["start"] == pytest.approx(result["accuracy_start"])
    records = read_metrics(tmp_path / "two" / "metrics.jsonl")
    assert len(records) == STEPS
    assert records[-1]["n_overflows"] > 0
    assert any(record["outcome"] == "accepted" for record in records)
    for record in records:
        if record["outcome"] == "accepted":
            assert record["loss_after"] < record["loss"] + 0.4 * record["step_size"] * record["slope"]
    saved = read_checkpoint(tmp_path / "two" / "checkpoint_stage_2" / f"resnet_small-1_{STEPS}.ckpt")
    assert int(saved["loss_scale.overflows"]) == records[-1]["n_overflows"]
    assert int(saved["ema.updates"]) == sum(record["outcome"] == "accepted" for record in records)


def test_a_cooldown_takes_over_batches_and_the_parts_of_the_step(
    stage_1: Path, few_digits: Path, tmp_path: Path
) -> None:
    weights, config = stage_1 / "checkpoint_stage_1" / f"resnet_small-2_{STEPS}.ckpt", tmp_path / "bare.yaml"
    lines = (CONFIGS / "digits_anytime_2.yaml").read_text().splitlines()
    config.write_text("\n".join(line for line in lines if "batch_size" not in line))
    out, options = tmp_path / "two", ["--set=reestimate_batches=2", "--set=data.eval_split=val"]
    done = program("stage_2", few_digits, weights, "--config", config, "--out", out, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    settings = load_config(StageTwoConfig, out / "config.yaml")
    assert (settings.data.batch_size, settings.accumulation) == (8, 2)
    assert (settings.clipping.norm, settings.clipping.value) == (1.0, 0.5)
    assert (settings.precision.level, settings.loss_scale.name, settings.ema.decay) == ("O2", "dynamic", 0.9)
    assert json.loads((out / "result.json").read_text())["steps"] == STEPS
    begun = read_checkpoint(weights)
    saved = read_checkpoint(next((out / "checkpoint_stage_2").glob(f"*-1_{STEPS}.ckpt")))
    assert int(saved["ema.updates"]) > int(begun["ema.updates"])  # it goes on from stage 1's
    assert int(saved["loss_scale.overflows"]) >= int(begun["loss_scale.overflows"]) > 0
    assert "warning: stage 1 made" not in done.stderr
