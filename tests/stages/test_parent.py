"""What a cooldown takes over from a run of stage 1 or from the configuration, and what it refuses."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.config import CooldownConfig, SearchConfig, StageOneConfig, StageTwoConfig, config_text, parts_of
from dimred.distributed.ranks import ALONE
from dimred.errors import ConfigError
from dimred.stages.parent import (
    Handover,
    build_cooldown_optimizer,
    build_cooldown_step,
    read_handover,
    share_handover,
    with_parts_of_stage_1,
)
from dimred.stages.steps import build_optimizer
from dimred.stages.subspace_train_step import build_search_step
from dimred.stages.task import build_network
from dimred.train_step.optimizers import state_parameters
from dimred.vectors.parameters import to_arrays
from tests.helpers.networks import basis_for

MODEL = {"model": {"name": "tests.helpers.tiny_task:network", "n_classes": 3}}
ONE = StageOneConfig.model_validate(
    MODEL | {"epochs": 4, "schedule": {"peak": 0.4, "warmup_epochs": 0, "total_epochs": 8}}
)
OWN = {"optimizer": {"name": "adamw"}, "rate": 0.25}
NETWORK = build_network(ONE)


def settings(**options: object) -> StageTwoConfig:
    return StageTwoConfig.model_validate(MODEL | {"epochs": 2} | options)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Write a run's full checkpoint after epoch 4 of 8 with 3 steps in each, and a snapshot of the same weights."""
    (tmp_path / "run" / "checkpoint_stage_1" / "checkpoint_pca").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(config_text(ONE))
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


def read(path: Path, **options: object) -> Handover:
    return read_handover(CooldownConfig.model_validate(options), NETWORK, path, read_checkpoint(path))


def test_a_full_checkpoint_gives_optimizer_state_and_the_rate_of_its_epoch(weights: Path) -> None:
    found = read(weights, schedule="sqrt")
    assert (found.optimizer, found.updates) == (ONE.optimizer, 12)
    assert found.rate == pytest.approx(0.2)
    assert found.taken_from.endswith("run/config.yaml")
    optimizer = build_cooldown_optimizer(found, NETWORK, 2, n_epochs=2)
    rates = []
    for step in range(4):
        rates.append(float(optimizer.get_lr().asnumpy()))
        optimizer.global_step.set_data(optimizer.global_step + 1)
        assert int(optimizer.global_step.asnumpy()[0]) == 13 + step
    assert rates == pytest.approx([0.5 * 0.2 * (1 - np.sqrt(step / 4)) for step in range(4)])
    assert all((value.asnumpy() == 0.5).all() for value in state_parameters(optimizer) if "moments" in value.name)


def test_dropped_steps_do_not_count_for_the_rate(weights: Path) -> None:
    assert read(after_updates(weights, 9)).rate == pytest.approx(0.4 * (1 - 9 / 24))


def test_batches_and_parts_of_the_step_are_those_of_stage_1_unless_set(weights: Path, tmp_path: Path) -> None:
    parts = {"clipping": {"norm": 2.0}, "ema": {"decay": 0.9}, "loss_scale": {"name": "static"}}
    one = StageOneConfig.checked(ONE.model_dump() | {"accumulation": 3, "precision": {"level": "O2"}} | parts)
    (tmp_path / "run" / "config.yaml").write_text(config_text(one))
    own_parts = {key: value for key, value in parts_of(ONE).items() if key != "batch_size"}
    bare, own = settings(), settings(data={"batch_size": 8, "workers": 3}, **own_parts)
    found = with_parts_of_stage_1(bare, weights, ALONE)
    assert parts_of(found) == parts_of(one)
    assert settings(ema={"decay": 0.5}).with_parts_of(parts_of(one)).ema.decay == 0.5
    assert with_parts_of_stage_1(own, weights, ALONE) == own
    off = settings(cooldown=None, search={})
    assert with_parts_of_stage_1(off, weights, ALONE) == off
    with pytest.raises(ConfigError, match="sink needs batches of one shape"):
        with_parts_of_stage_1(settings(data={"sink": True}), weights, ALONE)
    assert with_parts_of_stage_1(bare, tmp_path / "net-4_3.ckpt", ALONE) == bare  # of no run


def test_a_rate_made_for_batches_of_another_size_is_warned_of(weights: Path, caplog: pytest.LogCaptureFixture) -> None:
    for options, steps, said in (({}, 3, False), ({}, 24, True), ({"rate": 0.2}, 24, False)):
        build_cooldown_optimizer(read(weights, **options), NETWORK, steps, n_epochs=2)
        told = "stage 1 made 3 steps in an epoch, stage 2 makes 24, so that its rate is for batches of another size"
        assert (told in caplog.text) == said
        caplog.clear()


def test_a_handover_is_the_same_after_it_was_shared(weights: Path) -> None:
    found = read(weights)
    assert share_handover(found, ALONE) == found


def test_the_configuration_wins_over_stage_1(weights: Path) -> None:
    assert read(weights, rate=0.25).rate == 0.25
    found = read(weights, optimizer={"name": "momentum", "momentum": 0.5})
    assert (found.optimizer.momentum, found.updates, found.rate) == (0.5, 12, pytest.approx(0.2))


@pytest.mark.parametrize(("searches", "ema"), [(False, {}), (False, {"ema": {"decay": 0.5}}), (True, {})])
def test_the_loss_scale_goes_on_whether_or_not_an_average_begins(
    searches: bool, ema: dict[str, object], weights: Path
) -> None:
    state = {"loss_scale.scale": np.float32(32.0), "loss_scale.good_steps": np.int32(5), "loss_scale.overflows": 1}
    write_checkpoint(weights, read_checkpoint(weights) | {name: np.asarray(value) for name, value in state.items()})
    two = settings(loss_scale={"name": "dynamic"}, **ema)
    if searches:
        basis = basis_for(NETWORK, 2)
        step = build_search_step(two, SearchConfig(n_components=2), read(weights), NETWORK, basis, 3)
    else:
        step = build_cooldown_step(two, read(weights), NETWORK, 3)
    found = to_arrays([one for one in step.get_parameters() if one.name.startswith("loss_scale.")])
    assert found == state


def test_foreign_weights_with_optimizer_and_rate_begin_anew_and_say_so(weights: Path, tmp_path: Path) -> None:
    shutil.copy(weights.parent / "checkpoint_pca" / weights.name, tmp_path / "foreign.ckpt")
    for path in (tmp_path / "foreign.ckpt", weights):  # momentum's state is no use to adamw
        found = read(path, **OWN)
        assert (found.rate, found.updates, found.state) == (0.25, 0, None)
        assert "its state begins anew" in found.taken_from


def test_a_checkpoint_that_cannot_be_taken_over_is_refused_with_the_remedy(weights: Path, tmp_path: Path) -> None:
    foreign, renamed = tmp_path / "foreign.ckpt", weights.with_name("best.ckpt")
    free = tmp_path / "free" / "checkpoint_stage_1" / weights.name
    free.parent.mkdir(parents=True)
    made = {"optimizer": {"name": "schedule_free"}, "schedule": {"name": "constant"}}
    (tmp_path / "free" / "config.yaml").write_text(config_text(StageOneConfig.model_validate(MODEL | made)))
    for copy in (foreign, renamed, free):
        shutil.copy(weights, copy)
    cases = [
        (weights.parent / "checkpoint_pca" / weights.name, {}, rf"needs a full checkpoint, such as {weights}\."),
        (foreign, {}, "not in the checkpoint_stage_1/ of a stage 1 run.*set cooldown.optimizer.name and cooldown.rate"),
        (foreign, {"rate": 0.1}, "not in the checkpoint_stage_1/"),
        (renamed, {}, "not NAME-EPOCH_STEP.ckpt, so stage 1's rate there is not known; set cooldown.rate"),
        (weights, {"optimizer": {"name": "sgd", "beta1": 0.5}}, "optimizer.beta1 is not an option of sgd"),
        (weights, {"optimizer": {"name": "schedule_free"}}, r"^cooldown\.optimizer\.name is schedule_free"),
        (free, {}, r"leaves nothing to cool down: the network is \*-final"),
    ]
    for path, options, said in cases:
        with pytest.raises(ConfigError, match=said):
            read(path, **options)


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
