"""What the continued residual takes over from stage 1: its optimizer, the state of it, and the rate it ended with."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mindspore import nn

from dimred.build.steps import build_optimizer, build_rates
from dimred.config import OptimizerConfig, StageOneConfig, StageTwoConfig, load_config
from dimred.console import note
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError
from dimred.files.run_names import CONFIG, STAGE_1_CHECKPOINTS, checkpoint_place, full_checkpoint_beside, named_weights
from dimred.train_step.optimizers import UPDATES, state_parameters
from dimred.train_step.schedule import with_cooldown
from dimred.vectors.parameters import check_arrays, from_arrays

_USED_UP = 1e-3  # of the peak: a rate that has fallen so far leaves nothing to continue


class Continuation(NamedTuple):
    """The same on every rank, but for ``state``.

    Attributes:
        optimizer: its settings.
        rate: what it ended with.
        n_updates: that it has made; its bias correction and its rates go on from there.
        source: where that comes from, in words.
        steps_per_epoch: that stage 1 made, for whose batches the rate is; None where the settings give the rate.
        state: its arrays by name, on rank 0; None where it begins anew, and on other ranks.
    """

    optimizer: OptimizerConfig
    rate: float
    n_updates: int
    source: str
    steps_per_epoch: int | None = None
    state: Mapping[str, np.ndarray] | None = None

    def summary(self, factor: float) -> dict[str, Any]:
        """For ``result.json``; ``factor`` of the rate is where stage 2's begins."""
        return {
            "optimizer": self.optimizer.name, "updates": self.n_updates, "rate": self.rate, "factor": factor,
            "taken_from": self.source,
        }  # fmt: skip


def read_continuation(
    settings: StageTwoConfig, network: nn.Cell, weights: Path, arrays: Mapping[str, np.ndarray]
) -> Continuation:
    """What WEIGHTS and the run they are of say; ``optimizer`` and ``residual_rate`` of the settings come before it.

    Args:
        settings: of stage 2.
        network: whose weights they are.
        weights: WEIGHTS.
        arrays: in that file.

    Raises:
        ConfigError: WEIGHTS have no optimizer state; there is no stage 1 around them, and the settings do not say what
            it would have said; or its schedule had brought the rate to nothing.
        CheckpointError: the state is another network's.
    """
    typed, own = named_weights("WEIGHTS", weights), settings.optimizer
    if own is None and UPDATES not in arrays:
        raise ConfigError(
            f"{typed} has the weights but not the state of an optimizer; residual continued needs a full checkpoint, "
            f"such as {full_checkpoint_beside(weights)}. Or set optimizer.name and residual_rate, to begin anew"
        )
    if own is not None and settings.residual_rate is not None:
        optimizer, rate, source = own, settings.residual_rate, "optimizer and residual_rate of the configuration"
    elif (stage_1 := read_stage_1_config(weights)) is not None:
        config = weights.parent.parent / CONFIG
        optimizer, source = own or stage_1.optimizer, str(config)
        n_updates = int(arrays[UPDATES].item()) if UPDATES in arrays else None
        rate = settings.residual_rate or last_rate(stage_1, weights, n_updates)
    else:
        raise ConfigError(
            f"{typed} is not in the {STAGE_1_CHECKPOINTS}/ of a stage 1 run, so neither its optimizer nor its "
            "rate is known; for residual continued set optimizer.name and residual_rate"
        )
    place = checkpoint_place(weights) if settings.residual_rate is None else None
    steps = place.steps_per_epoch if place else None
    needed = state_parameters(build_optimizer(optimizer, network, 0.0))
    if own is not None and any(parameter.name not in arrays for parameter in needed):
        return Continuation(optimizer, rate, 0, f"{source}; its state begins anew", steps)
    check_arrays(needed, arrays, typed)
    return Continuation(optimizer, rate, int(arrays[UPDATES].item()), source, steps, arrays)


def read_stage_1_config(weights: Path) -> StageOneConfig | None:
    """The configuration of the run that WEIGHTS are a full checkpoint of; None where they are of none."""
    config = weights.parent.parent / CONFIG
    is_of_run = weights.parent.name == STAGE_1_CHECKPOINTS and config.is_file()
    return load_config(StageOneConfig, config) if is_of_run else None


def with_batches_of_stage_1(settings: StageTwoConfig, weights: Path, ranks: Ranks) -> StageTwoConfig:
    """``settings.with_batches_of`` the stage 1 that WEIGHTS are of, where there is one; every rank calls this.

    Raises:
        ConfigError: on every rank, as ``with_batches_of``, or because the configuration of that stage 1 can't be read.
    """
    if settings.residual != "continued":
        return settings
    stage_1 = ranks.run_on_rank_zero(lambda: read_stage_1_config(weights))
    told = ranks.broadcast_bytes(b"" if stage_1 is None else stage_1.model_dump_json().encode())
    return settings.with_batches_of(StageOneConfig.checked(json.loads(told))) if told else settings


def check_same_loss(settings: StageTwoConfig, weights: Path) -> None:
    """Check that WEIGHTS were trained with this loss, where that is known.

    Raises:
        ConfigError: they were trained with another one.
    """
    stage_1 = read_stage_1_config(weights)
    if stage_1 is not None and stage_1.loss != settings.loss:
        own, trained = (stage.loss or "null, cross entropy" for stage in (settings, stage_1))
        raise ConfigError(f"loss is {own}, but WEIGHTS {str(weights)!r} were trained with {trained}; set the same loss")


def last_rate(stage_1: StageOneConfig, weights: Path, n_updates: int | None = None) -> float:
    """The rate that the next update of stage 1 would have had.

    Args:
        stage_1: its configuration.
        weights: its full checkpoint.
        n_updates: that its optimizer has made, fewer than the steps where some were dropped; None for the steps.
    """
    place = checkpoint_place(weights)
    if place is None:
        raise ConfigError(
            f"WEIGHTS is {str(weights)!r}, not NAME-EPOCH_STEP.ckpt, so stage 1's rate there is not known; set "
            "residual_rate"
        )
    rates = build_rates(stage_1.schedule, place.steps_per_epoch, place.epoch + 1)
    made = place.epoch * place.steps_per_epoch if n_updates is None else n_updates
    schedule, end = stage_1.schedule, stage_1.schedule.last_epoch
    has_ended = end is not None and made >= end * place.steps_per_epoch
    leaves_a_rate = schedule.name == "step" and schedule.cooldown is None
    rate = 0.0 if has_ended and not leaves_a_rate else float(rates[min(made, len(rates) - 1)])
    if rate < _USED_UP * schedule.peak:
        raise ConfigError(
            f"stage 1's schedule had brought its rate to {rate:.2g} by epoch {place.epoch}, which leaves nothing for "
            "residual continued; name an earlier full checkpoint, or set residual_rate"
        )
    return rate


def share_continuation(found: Continuation | None, ranks: Ranks) -> Continuation:
    """Rank 0's, on every rank.

    Args:
        found: rank 0's; None elsewhere.
        ranks: all of them call this.
    """
    told = b"" if found is None else json.dumps([found.optimizer.model_dump(), *found[1:5]]).encode()
    optimizer, rate, n_updates, source, steps = json.loads(ranks.broadcast_bytes(told))
    state = None if found is None else found.state
    return Continuation(OptimizerConfig(**optimizer), rate, n_updates, source, steps, state)


def build_continued_optimizer(
    continuation: Continuation, settings: StageTwoConfig, network: nn.Cell, steps_per_epoch: int, ranks: Ranks = ALONE
) -> nn.Optimizer:
    """Stage 1's optimizer with its state, and with rates that fall from a share of its last one to 0 over stage 2.

    A warning says so where stage 1 made another number of steps in an epoch.
    """
    before = continuation.steps_per_epoch
    if ranks.rank == 0 and before not in (None, steps_per_epoch):
        note(
            f"warning: stage 1 made {before} steps in an epoch, stage 2 makes {steps_per_epoch}, so that its rate is "
            "for batches of another size; give the batch size, the accumulation and the devices of stage 1, or set "
            "residual_rate"
        )
    n_updates, n_steps = continuation.n_updates, settings.n_epochs * steps_per_epoch
    constant = np.full(n_updates + 1, settings.residual_factor * continuation.rate)
    rates = with_cooldown(constant, n_updates, n_steps, settings.residual_schedule)
    optimizer = build_optimizer(continuation.optimizer, network, rates.tolist())
    state = state_parameters(optimizer)
    if continuation.state is not None:
        from_arrays(state, continuation.state, "WEIGHTS")
    ranks.broadcast(state)
    return optimizer
