"""What a cooldown takes over from a run of stage 1 or from the configuration, and what it refuses."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import CooldownConfig, StageOneConfig, StageTwoConfig, config_text
from dimred.errors import ConfigError, SeriesError
from dimred.runs.steps import build_optimizer
from dimred.runs.task import Task, build_network, build_task
from dimred.stages.cooldown import Cooldown, build_cooldown_step, last_rate, plan_cooldown
from dimred.stages.parent import StageOneRun, config_beside
from dimred.train_step.optimizer_state import state_parameters
from dimred.vectors.parameters import to_arrays
from tests.helpers import tiny_task
from tests.helpers.run_files import write_config

MODEL = {"model": {"name": "tests.helpers.tiny_task:network", "n_classes": 3}}
ONE = StageOneConfig.model_validate(
    MODEL | {"epochs": 4, "schedule": {"peak": 0.4, "warmup_epochs": 0, "total_epochs": 8}}
)
OWN = {"optimizer": {"name": "adamw"}, "rate": 0.25}
NETWORK = build_network(ONE)


def config_with(**options: object) -> StageTwoConfig:
    return StageTwoConfig.model_validate(MODEL | {"method": "cooldown", "epochs": 2} | options)


def task(n_steps: int, **options: object) -> Task[StageTwoConfig]:
    """Return the task of a stage 2 that makes so many steps in an epoch."""
    data = tiny_task.TASK["data"] | {"batch_size": 24 // n_steps}
    return build_task(config_with(data=data, **options), Path())


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Write a run's full checkpoint after epoch 4 of 8 with 3 steps in each, and a snapshot of the same weights."""
    (tmp_path / "run" / "checkpoint_stage_1" / "checkpoint_pca").mkdir(parents=True)
    write_config(tmp_path / "run", config_text(ONE))
    path = tmp_path / "run" / "checkpoint_stage_1" / "net-4_3.ckpt"
    arrays = to_arrays(NETWORK.get_parameters())
    for parameter in state_parameters(build_optimizer(ONE.optimizer, NETWORK, 0.1)):
        arrays[parameter.name] = np.full(parameter.shape, 12 if parameter.name == "global_step" else 0.5).astype(
            parameter.asnumpy().dtype
        )
    write_checkpoint(path, arrays, {"epoch": 4})
    snapshot = {weight.name: arrays[weight.name] for weight in NETWORK.trainable_params()}
    write_checkpoint(path.parent / "checkpoint_pca" / path.name, snapshot)
    return path


def after_updates(path: Path, count: int) -> Path:
    """Give the checkpoint's optimizer state another number of updates."""
    arrays = read_checkpoint(path)
    write_checkpoint(path, arrays | {"global_step": np.full_like(arrays["global_step"], count)})
    return path


def read(path: Path, **options: object) -> Cooldown:
    return plan_cooldown(CooldownConfig.model_validate(options), NETWORK, StageOneRun.open(path))


def test_a_link_to_a_full_checkpoint_leads_to_its_run(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "link.ckpt").symlink_to(weights)
    run = StageOneRun.open(tmp_path / "link.ckpt")
    assert (run.path, run.epoch, run.config) == (weights, 4, ONE)


def test_a_full_checkpoint_gives_optimizer_state_and_the_rate_of_its_epoch(weights: Path) -> None:
    found = read(weights, schedule="1-sqrt")
    assert (found.optimizer, found.updates) == (ONE.optimizer, 12)
    assert found.rate == pytest.approx(0.2)
    assert found.taken_from.endswith("run/config.yaml")
    optimizer = found.build_optimizer(task(2))
    rates = []
    for step in range(4):
        rates.append(float(optimizer.get_lr().asnumpy()))
        optimizer.global_step.set_data(optimizer.global_step + 1)
        assert int(optimizer.global_step.asnumpy()[0]) == 13 + step
    assert rates == pytest.approx([0.5 * 0.2 * (1 - np.sqrt(step / 4)) for step in range(4)])
    assert all((value.asnumpy() == 0.5).all() for value in state_parameters(optimizer) if "moments" in value.name)


def test_dropped_steps_do_not_count_for_the_rate(weights: Path) -> None:
    assert read(after_updates(weights, 9)).rate == pytest.approx(0.4 * (1 - 9 / 24))


def test_without_a_file_stage_2_reads_that_of_stage_1(weights: Path, tmp_path: Path) -> None:
    assert config_beside(weights) == tmp_path / "run" / "config.yaml"
    with pytest.raises(
        ConfigError, match=r"belongs to no run of stage 1 that this host can read.*give one with --config"
    ):
        config_beside(tmp_path / "net-4_3.ckpt")


def test_a_rate_made_for_batches_of_another_size_is_warned_of(weights: Path, caplog: pytest.LogCaptureFixture) -> None:
    for options, steps, said in (({}, 3, False), ({}, 24, True), ({"rate": 0.2}, 24, False)):
        read(weights, **options).build_optimizer(task(steps))
        told = "stage 1 made 3 steps in an epoch, but stage 2 makes 24, so stage 1's rate is for batches"
        assert (told in caplog.text) == said
        caplog.clear()


def test_the_configuration_wins_over_stage_1(weights: Path) -> None:
    assert read(weights, rate=0.25).rate == 0.25
    found = read(weights, optimizer={"name": "momentum", "momentum": 0.5})
    assert (found.optimizer.momentum, found.updates, found.rate) == (0.5, 12, pytest.approx(0.2))


@pytest.mark.parametrize("ema", [{}, {"ema": {"decay": 0.5}}])
def test_the_loss_scale_goes_on_whether_or_not_an_average_begins(ema: dict[str, object], weights: Path) -> None:
    state = {"loss_scale.scale": np.float32(32.0), "loss_scale.good_steps": np.int32(5), "loss_scale.overflows": 1}
    write_checkpoint(weights, read_checkpoint(weights) | {name: np.asarray(value) for name, value in state.items()})
    stage_2 = task(3, loss_scale={"name": "dynamic"}, **ema)
    step = build_cooldown_step(stage_2, read(weights))
    found = to_arrays([parameter for parameter in step.get_parameters() if parameter.name.startswith("loss_scale.")])
    assert found == state


def test_foreign_weights_with_optimizer_and_rate_begin_anew_and_say_so(weights: Path, tmp_path: Path) -> None:
    shutil.copy(weights.parent / "checkpoint_pca" / weights.name, tmp_path / "foreign.ckpt")
    for path in (tmp_path / "foreign.ckpt", weights):  # momentum's state is no use to adamw
        found = read(path, **OWN)
        assert (found.rate, found.updates) == (0.25, 0)
        assert "its state begins anew" in found.taken_from


def test_a_checkpoint_that_cannot_be_taken_over_is_refused_with_the_remedy(weights: Path, tmp_path: Path) -> None:
    foreign, renamed = tmp_path / "foreign.ckpt", weights.with_name("best.ckpt")
    free = tmp_path / "free" / "checkpoint_stage_1" / weights.name
    free.parent.mkdir(parents=True)
    made = {"optimizer": {"name": "schedule_free"}, "schedule": {"name": "constant"}}
    write_config(tmp_path / "free", config_text(StageOneConfig.model_validate(MODEL | made)))
    for copy in (foreign, renamed, free):
        shutil.copy(weights, copy)
    cases = [
        (weights.parent / "checkpoint_pca" / weights.name, {}, r"give a full checkpoint of stage 1, checkpoint_st"),
        (foreign, {}, "not in the checkpoint_stage_1/ of a stage 1 run.*set cooldown.optimizer.name and cooldown.rate"),
        (foreign, {"rate": 0.1}, "not in the checkpoint_stage_1/"),
        (renamed, {}, "not NAME-EPOCH_STEPS.ckpt, so stage 1's rate there is not known; set cooldown.rate"),
        (weights, {"optimizer": {"name": "sgd", "beta1": 0.5}}, "optimizer.beta1 is not an option of sgd"),
        (weights, {"optimizer": {"name": "schedule_free"}}, r"^cooldown\.optimizer\.name is schedule_free"),
        (free, {}, r"has no rate to bring to 0\. To cool down the trained network, \*-final"),
    ]
    for path, options, said in cases:
        with pytest.raises(ConfigError, match=said):
            read(path, **options)


def test_a_run_is_found_from_any_folder(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(weights.parent / "checkpoint_pca")
    for path in (Path("..", weights.name), weights):
        assert StageOneRun.open(path).config == ONE
    monkeypatch.chdir(weights.parent)
    assert StageOneRun.open(Path(weights.name)).config == ONE


def test_a_rate_that_is_used_up_is_refused(weights: Path) -> None:
    ended = weights.with_name("net-8_999.ckpt")
    shutil.copy(weights, ended)
    with pytest.raises(ConfigError, match="rate was 5e-05 by epoch 8, so nothing is left to cool down"):
        read(after_updates(ended, 8 * 999 - 1))
    for steps in (3, 999):  # at the end of the schedule, however few the steps that it had
        ended = weights.with_name(f"net-8_{steps}.ckpt")
        shutil.copy(weights, ended)
        with pytest.raises(ConfigError, match="rate was 0 by epoch 8, so nothing is left to cool down"):
            read(after_updates(ended, 8 * steps))


@pytest.mark.parametrize("peak", [0.1, 0.2, 0.3, 0.8])
def test_steps_down_to_a_thousandth_of_the_peak_leave_a_rate(peak: float) -> None:
    steps = {"name": "step", "peak": peak, "warmup_epochs": 0, "total_epochs": 90, "milestones": (30, 60, 80)}
    one = StageOneConfig.checked({"epochs": 90, "schedule": steps})
    for epoch in (85, 90):
        run = StageOneRun(Path("net.ckpt"), {"global_step": np.int32(epoch * 625)}, epoch, 625, one)
        assert last_rate(run) == pytest.approx(peak / 1000)


def test_a_checkpoint_is_paired_with_the_snapshots_up_to_its_epoch(tmp_path: Path) -> None:
    def of_epoch(epoch: int | None) -> StageOneRun:
        return StageOneRun(tmp_path / "net.ckpt", {}, epoch)

    assert not of_epoch(2).has_snapshots
    (tmp_path / "checkpoint_pca").mkdir()
    assert not of_epoch(2).has_snapshots
    series = CheckpointSeries.create(tmp_path / "checkpoint_pca", keep=9)
    for epoch in range(1, 5):
        series.append({"weight": np.full(3, epoch, np.float32)}, step=5 * epoch, epoch=epoch)
    for last, steps in ((2, [5, 10]), (4, [5, 10, 15, 20]), (None, [5, 10, 15, 20])):
        assert [entry.step for entry in of_epoch(last).snapshots().entries] == steps
    assert not of_epoch(0).has_snapshots
    with pytest.raises(SeriesError, match="checkpoint_pca has no snapshots up to epoch 0"):
        of_epoch(0).snapshots()
