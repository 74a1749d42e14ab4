"""A stage 2 goes on over bad batches and after a kill, but only with the inputs that it began with."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import nn

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import RunStates
from dimred.config import NO_DECAY_PATTERNS, StageOneConfig, config_text
from dimred.errors import ConfigError, FaultError
from dimred.pipelines.stage_2 import stage_2
from dimred.report.run_record import read_stage_2
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.splits import build_data
from dimred.stages.cooldown import ChoosingCooldown
from dimred.stages.stage_2 import StageTwo
from dimred.train_step.optimizer_state import state_parameters
from dimred.train_step.optimizers import decay_groups
from dimred.vectors.parameters import from_arrays, to_arrays
from tests.helpers.finished_stage_1 import STAGE_1, config_with
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import RunStage, dying, stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK, Points, network


@pytest.fixture(scope="module")
def default_run(checkpoints: Path) -> RunStage:
    """Make a stage 2 of one epoch, whose cells are compiled once."""
    return stage_2_run(config_with(), checkpoints / "network-2_4.ckpt")


@pytest.fixture
def finished(default_run: RunStage, checkpoints: Path, tmp_path: Path) -> Path:
    """Copy what the default run left."""
    made = checkpoints.parents[1] / "two"
    if not made.exists():
        default_run(made, False)
    return Path(shutil.copytree(made, tmp_path / "two"))


def test_the_weights_of_a_cooldown_are_those_of_a_plain_loop_to_the_last_bit(checkpoints: Path, tmp_path: Path) -> None:
    """The loop is MindSpore's own, with stage 1's momenta and a rate that falls to 0."""
    weights, first = checkpoints / "network-2_4.ckpt", 0.5 * 0.1
    config = config_with(epochs=2, cooldown={"keep_best": False})
    stage_2_run(config, weights)(tmp_path / "two", False)
    begun, plain = read_checkpoint(weights), network(3)
    rates = [first * (8 - step) / 8 for step in range(8)]
    groups = decay_groups(plain.trainable_params(), 1e-4, NO_DECAY_PATTERNS)
    optimizer = nn.Momentum(groups, [0.0] * 8 + rates, 0.9)
    from_arrays([*plain.get_parameters(), *state_parameters(optimizer)], begun, "stage 1")
    loss = nn.WithLossCell(plain, nn.CrossEntropyLoss(label_smoothing=config.label_smoothing))
    step = nn.TrainOneStepCell(loss, optimizer).set_train(True)
    train = build_data(config.data, Path(), "train")
    for epoch in (1, 2):
        for batch in train.training_epoch(config.seed, 1_000_000 + epoch).create_tuple_iterator():
            step(*batch)
        found = points(tmp_path / "two")[f"{epoch}_4"]
        for name, value in to_arrays(plain.get_parameters()).items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{name} after epoch {epoch}")
    assert np.abs(found["0.weight"] - begun["0.weight"]).max() > 1e-3


def test_the_best_average_is_a_point_of_its_own_and_the_cooldown_goes_on_from_the_start(
    checkpoints: Path, tmp_path: Path
) -> None:
    """The weights are so far off that the mean of the two snapshots is better than all that follows."""
    shutil.copytree(checkpoints.parent, tmp_path / "one")
    weights, out = tmp_path / "one" / "checkpoint_stage_1" / "network-2_4.ckpt", tmp_path / "two"
    arrays, rng = read_checkpoint(weights), np.random.default_rng(0)
    trained = list(read_checkpoint(weights.parent / "checkpoint_pca" / weights.name))
    noise = {name: 5 * rng.normal(size=arrays[name].shape).astype(np.float32) for name in trained}
    write_checkpoint(weights, arrays | {name: arrays[name] + noise[name] for name in trained})
    run = stage_2_run(config_with(), weights)
    run(out, False)
    begun, found, result = read_checkpoint(weights), points(out), StageTwoResult.read(out / "result.json")
    assert set(found) == {"average", "start", "1_4", "final"}
    assert all(np.array_equal(found["start"][name], begun[name]) for name in found["final"])  # statistics too
    series = CheckpointSeries.open(weights.parent / "checkpoint_pca")
    assert result.choices["average"].name == "uniform of 2 snapshots, steps 4 to 8"
    for name in trained:
        mean = sum(read_checkpoint(path)[name].astype(np.float64) for path in series.paths) / 2
        np.testing.assert_array_equal(found["average"][name], mean.astype(np.float32))
        np.testing.assert_array_equal(found["final"][name], found["average"][name])
    sizes = {one["name"]: one["effective_size"] for one in result.choices["kept"].candidates}
    assert sizes == {"average": 2, "1": 1}
    assert result.kept == "average"


def points(out: Path) -> dict[str, dict[str, np.ndarray]]:
    """Read the checkpoints of a run by point."""
    folder = out / "checkpoint_stage_2"
    return {path.stem.partition("-")[2]: read_checkpoint(path) for path in folder.glob("*.ckpt")}


def test_a_search_that_was_made_longer_has_no_result_before_it_has_the_one_of_all_epochs(
    checkpoints: Path, tmp_path: Path
) -> None:
    out, weights, matrix = tmp_path / "two", checkpoints / "network-2_4.ckpt", tmp_path / "pca_mat.npy"
    dimred.fit_basis(CheckpointSeries.open(checkpoints / "checkpoint_pca"), 1, out=matrix)
    one, longer = (
        stage_2_run(
            config_with(method="search", search={"n_components": 1}, epochs=epochs, checkpoints={"keep": keep}),
            weights,
            matrix,
        )
        for epochs, keep in ((1, None), (2, 1))
    )
    one(out, False)
    with dying(StageTwo, "after_epoch"):
        longer(out, True)
    with pytest.raises(ConfigError, match=r"has no result\.json; finish stage 2 with --resume"):
        read_stage_2(out)
    longer(out, True)
    result = StageTwoResult.read(out / "result.json")
    assert (result.epochs, list(result.by_epoch)) == (2, [1, 2])
    assert set(points(out)) == {"start", "2_4", "final"}
    before = results(out)
    with pytest.raises(ConfigError, match="the run has finished epoch 2; --set epochs to at least that"):
        one(out, True)
    assert not differences(results(out), before)


def test_the_result_tells_every_candidate_and_that_its_split_has_chosen(
    checkpoints: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By default the points of every epoch are also measured with re-estimated BatchNorm statistics."""
    stage_2_run(config_with(epochs=2), checkpoints / "network-2_4.ckpt")(tmp_path / "two", False)
    result = StageTwoResult.read(tmp_path / "two" / "result.json")
    for what in ("average", "kept"):
        candidates = result.choices[what].candidates
        assert all(one["metric"] == pytest.approx(round(9 * one["metric"]) / 9) for one in candidates)
        best = min(candidates, key=lambda one: one["loss"])
        accuracy = f"{best['loss']:.4f} (accuracy {100 * best['metric']:.2f} %); the next of {len(candidates)}, "
        assert f"with the lowest loss on 'val', {accuracy}" in caplog.text
    assert [point for point, values in result.main.by_point.items() if len(values) == 2] == ["start", "1", "2", "final"]
    assert result.warning.startswith("'val' is also the split that chooses, so this figure is likely too good")
    assert result.warning in caplog.messages
    assert config_with(cooldown={"keep_best": False}).eval_split_warning() is None


class Other(Points):
    """Points with one changed split."""

    split, n = "val", 9

    def __init__(self, data: Path, split: str, seed: int | None):
        super().__init__(data, split, seed)
        if split == self.split:
            self._points, self._labels = 1 + self._points[: self.n], self._labels[: self.n]


@pytest.mark.parametrize(("split", "n"), [("val", 9), ("val", 8), ("train", 24)])
def test_a_run_does_not_go_on_with_another_split(
    split: str, n: int, finished: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, before = checkpoints / "network-2_4.ckpt", results(finished)
    monkeypatch.setattr("tests.helpers.tiny_task.Points", type("Another", (Other,), {"split": split, "n": n}))
    with pytest.raises(ConfigError, match=rf"DATA/{split}: \d+ samples, digest .* -> {n} samples"):
        stage_2_run(config_with(), weights)(finished, True)
    assert not differences(results(finished), before)


def test_a_run_goes_on_with_its_weights_wherever_they_are_and_with_no_others(
    finished: Path, checkpoints: Path, tmp_path: Path
) -> None:
    """Such as those of another epoch, or of another seed."""
    weights = shutil.copytree(checkpoints.parent, tmp_path / "one") / "checkpoint_stage_1/network-2_4.ckpt"
    stage_2_run(config_with(), weights)(finished, True)  # the same weights elsewhere
    before, arrays = results(finished), read_checkpoint(weights)
    name = next(name for name, array in arrays.items() if array.dtype == np.float32 and array.ndim)
    write_checkpoint(weights, arrays | {name: arrays[name] + 1})
    for others in (weights, checkpoints / "network-1_4.ckpt"):
        with pytest.raises(ConfigError, match=rf"(?m)^  WEIGHTS: \w+ \({weights}\) -> \w+ \({others}\)$"):
            stage_2_run(config_with(), others)(finished, True)
        assert not differences(results(finished), before)


def test_the_program_goes_on_with_its_own_configuration_and_without_the_snapshots(
    checkpoints: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoints.parent, tmp_path / "one")
    weights, out, config = tmp_path / "one/checkpoint_stage_1/network-2_4.ckpt", tmp_path / "two", tmp_path / "c.yaml"
    config.write_text(config_text(config_with(epochs=2)))
    arguments: dict[str, Any] = {"data": tmp_path, "weights": weights}
    stage_2(**arguments, config_file=config, out=tmp_path / "whole")
    with dying(ChoosingCooldown, "finish"):
        stage_2(**arguments, config_file=config, out=out)
    (out / "resume" / "state-8.ckpt").unlink()
    shutil.rmtree(weights.parent / "checkpoint_pca")
    with pytest.raises(ConfigError, match=r"(?m)^  epochs: 2 -> 3$"):
        stage_2(**arguments, out=out, resume=True, overrides=["epochs=3"])
    stage_2(**arguments, out=out, resume=True, overrides=["tensorboard=false"])
    assert not differences(results(out), results(tmp_path / "whole"))


class Overflowing(Points):
    """Points of which one is so large in the second epoch of stage 1 that its loss overflows."""

    def __init__(self, data: Path, split: str, seed: int | None, epoch: int | None):
        super().__init__(data, split, seed)
        if epoch == 2:
            self._points[5] = np.finfo(np.float32).max


@pytest.mark.parametrize("drops", [True, False])
def test_an_overflow_that_is_not_dropped_ends_the_run_with_its_last_good_state(drops: bool, tmp_path: Path) -> None:
    out, overflowing = tmp_path / "one", {"data": TASK["data"] | {"dataset": "tests.stages.test_stage_2:Overflowing"}}
    scale = {"loss_scale": {"name": "static", "drop_overflow": drops}}
    run = stage_1_run(StageOneConfig.model_validate(TASK | STAGE_1 | overflowing | scale))
    said = r"not finite.*the last good state is .*state-4.ckpt, but the same steps would diverge again"
    with nullcontext() if drops else pytest.raises(FaultError, match=said):
        run(out, False)
    assert RunStates(out).newest(pytest.fail).path.name == f"state-{8 if drops else 4}.ckpt"
