"""Hand over from stage 1 to stage 2's cooldown: the optimizer, its state and rate, batch size, parts of the step."""

import json
import logging
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mindspore import nn

from dimred.config import (
    CooldownConfig,
    OptimizerConfig,
    StageConfig,
    StageOneConfig,
    StageTwoConfig,
    load_config,
    parts_of,
)
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError
from dimred.io.run_names import CONFIG, STAGE_1_CHECKPOINTS, checkpoint_place, full_checkpoint_beside, named_weights
from dimred.stages.steps import build_optimizer, build_rates, join_step
from dimred.train_step.optimizers import UPDATES, state_parameters
from dimred.train_step.schedule import with_cooldown
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import check_arrays, from_arrays

_log = logging.getLogger(__name__)

_PARTS_STATE = ("ema.", "loss_scale.")  # prefixes of the parameters that hold the state of a step's parts
_USED_UP = 1e-3  # share of the peak below which nothing is left to cool down


class Handover(NamedTuple):
    """The settings and the state that a cooldown takes over from stage 1; shared with every rank, except for ``state``.

    Attributes:
        factor: the cooldown begins at ``factor * rate``.
        schedule: how the rate falls to 0, ``linear`` or ``sqrt``.
        optimizer: the optimizer's settings.
        rate: learning rate that stage 1 ended with.
        updates: updates that the optimizer has made; its bias correction and its rates go on from there.
        taken_from: where optimizer and rate come from, in words.
        steps_per_epoch: stage 1's, to notice batches of a different size; None if the settings give the rate.
        state: arrays of the optimizer and of the step's parts, by name, on rank 0; None on other ranks, and if the
            state begins anew.
    """

    factor: float
    schedule: str
    optimizer: OptimizerConfig
    rate: float
    updates: int
    taken_from: str
    steps_per_epoch: int | None = None
    state: Mapping[str, np.ndarray] | None = None

    def summary(self) -> dict[str, Any]:
        """Return everything but ``state``, for ``result.json``."""
        told = {name: value for name, value in self._asdict().items() if name != "state"}
        return told | {"optimizer": self.optimizer.name, "optimizer_settings": self.optimizer.model_dump(mode="json")}

    @classmethod
    def of_summary(cls, told: Mapping[str, Any], state: Mapping[str, np.ndarray] | None = None) -> "Handover":
        """Make a handover from its summary."""
        optimizer = OptimizerConfig(**told["optimizer_settings"])
        given = {name: told[name] for name in cls._fields if name != "state"}
        return cls(**given | {"optimizer": optimizer, "state": state})


def read_handover(
    cooldown: CooldownConfig, network: nn.Cell, weights: Path, arrays: Mapping[str, np.ndarray]
) -> Handover:
    """Read the handover from WEIGHTS and their run; ``optimizer`` and ``rate`` of the cooldown take precedence.

    Args:
        cooldown: section ``cooldown`` of stage 2.
        network: the network that has these weights.
        weights: WEIGHTS.
        arrays: content of that file.

    Raises:
        ConfigError: WEIGHTS lack the optimizer's state, or are not in a stage 1 run that has optimizer and rate, and
            the settings do not replace these; the optimizer is schedule_free; the name of WEIGHTS does not tell
            their epoch; or stage 1's schedule had already brought the rate to nothing.
        CheckpointError: the state belongs to a different network.
    """
    typed, own = named_weights("WEIGHTS", weights), cooldown.optimizer
    if own is None and UPDATES not in arrays:
        raise ConfigError(
            f"{typed} has the weights but not the state of an optimizer; a cooldown needs a full checkpoint, such as "
            f"{full_checkpoint_beside(weights)}. Or set cooldown.optimizer.name and cooldown.rate, to begin anew"
        )
    if own is not None and cooldown.rate is not None:
        optimizer, rate, source = own, cooldown.rate, "cooldown.optimizer and cooldown.rate of the configuration"
    elif (stage_1 := read_stage_1_config(weights)) is not None:
        config = weights.parent.parent / CONFIG
        optimizer, source = own or stage_1.optimizer, str(config)
        n_updates = int(arrays[UPDATES].item()) if UPDATES in arrays else None
        rate = cooldown.rate or last_rate(stage_1, weights, n_updates)
    else:
        raise ConfigError(
            f"{typed} is not in the {STAGE_1_CHECKPOINTS}/ of a stage 1 run, so neither its optimizer nor its "
            "rate is known; for a cooldown set cooldown.optimizer.name and cooldown.rate"
        )
    if own is not None and own.name == "schedule_free":
        raise ConfigError("cooldown.optimizer.name is schedule_free, which has no rate to bring to 0; name another one")
    if optimizer.name == "schedule_free":
        raise ConfigError(
            f"{typed} was trained with schedule_free. That leaves nothing to cool down: the network is *-final.ckpt "
            "beside it. Or name that one as WEIGHTS, and set cooldown.optimizer.name=momentum and cooldown.rate"
        )
    place = checkpoint_place(weights) if cooldown.rate is None else None
    steps = place.steps_per_epoch if place else None
    found = Handover(cooldown.factor, cooldown.schedule, optimizer, rate, 0, source, steps)
    needed = state_parameters(build_optimizer(optimizer, network, [0.0]))
    if own is not None and any(parameter.name not in arrays for parameter in needed):
        return found._replace(taken_from=f"{source}; its state begins anew")
    check_arrays(needed, arrays, typed)
    return found._replace(updates=int(arrays[UPDATES].item()), state=arrays)


def read_stage_1_config(weights: Path) -> StageOneConfig | None:
    """Read the configuration of the stage 1 run that wrote WEIGHTS; None if they are not in such a run."""
    config = weights.parent.parent / CONFIG
    is_of_run = weights.parent.name == STAGE_1_CHECKPOINTS and config.is_file()
    return load_config(StageOneConfig, config) if is_of_run else None


def with_parts_of_stage_1(
    settings: StageTwoConfig, weights: Path, ranks: Ranks, resumed: Path | None = None
) -> StageTwoConfig:
    """Return stage 2's settings, with batch size and parts of the step, if not set, from the run that wrote WEIGHTS.

    All ranks call this. Without a cooldown, or without such a run, the settings come back unchanged.

    Args:
        settings: configuration of stage 2.
        weights: path of the checkpoint that stage 2 starts from.
        ranks: rank 0 reads, and tells the others.
        resumed: folder of the stage 2 run to resume; its configuration has these too, in case stage 1's run is gone.

    Raises:
        ConfigError: on every rank, if a configuration can't be read, or the parts don't fit; see ``with_parts_of``.
    """
    if settings.cooldown is None:
        return settings

    def read() -> bytes:
        found: StageConfig | None = read_stage_1_config(weights)
        if found is None and resumed is not None and (resumed / CONFIG).is_file():
            found = load_config(StageTwoConfig, resumed / CONFIG)
        return b"" if found is None else json.dumps(parts_of(found)).encode()

    told = ranks.broadcast_bytes(ranks.run_on_rank_zero(read) or b"")
    return settings.with_parts_of(json.loads(told)) if told else settings


def check_same_task(settings: StageTwoConfig, weights: Path) -> None:
    """Check that stage 1 trained WEIGHTS with this loss, on images normalised like these, if its run is there to tell.

    Raises:
        ConfigError: the loss, the label smoothing of the cross entropy, ``data.mean`` or ``data.std`` differs.
    """
    stage_1 = read_stage_1_config(weights)
    if stage_1 is None:
        return
    if stage_1.loss != settings.loss:
        own, trained = (stage.loss or "null, cross entropy" for stage in (settings, stage_1))
        raise ConfigError(f"loss is {own}, but WEIGHTS {str(weights)!r} were trained with {trained}; set the same loss")
    keys = [] if settings.loss else ["label_smoothing"]
    keys += [] if settings.data.dataset else ["data.mean", "data.std"]
    for key in keys:
        own, trained = (json.dumps(attrgetter(key)(stage)) for stage in (settings, stage_1))
        if own != trained:
            raise ConfigError(
                f"{key} is {own}, but WEIGHTS {str(weights)!r} were trained with another; --set '{key}={trained}'"
            )


def last_rate(stage_1: StageOneConfig, weights: Path, n_updates: int | None = None) -> float:
    """Return the rate that the next update of stage 1 would have had.

    Args:
        stage_1: its configuration.
        weights: path of its full checkpoint, whose name tells the epoch.
        n_updates: updates made, which are fewer than the steps if some were dropped; None if as many as the steps.

    Raises:
        ConfigError: the name of WEIGHTS does not tell their epoch, or nothing is left of the rate.
    """
    place = checkpoint_place(weights)
    if place is None:
        raise ConfigError(
            f"WEIGHTS is {str(weights)!r}, not NAME-EPOCH_STEP.ckpt, so stage 1's rate there is not known; set "
            "cooldown.rate"
        )
    rates = build_rates(stage_1.schedule, place.steps_per_epoch, place.epoch + 1)
    made = place.epoch * place.steps_per_epoch if n_updates is None else n_updates
    schedule, end = stage_1.schedule, stage_1.schedule.last_epoch
    has_ended = end is not None and made >= end * place.steps_per_epoch
    rate = 0.0 if has_ended and schedule.name != "step" else float(rates[min(made, len(rates) - 1)])
    if rate < _USED_UP * schedule.peak:
        raise ConfigError(
            f"Stage 1's learning rate was {rate:.2g} by epoch {place.epoch}, so nothing is left to cool down; name an "
            "earlier full checkpoint, or set cooldown.rate"
        )
    return rate


def share_handover(found: Handover | None, ranks: Ranks) -> Handover | None:
    """Return rank 0's handover on every rank; all of them call this."""
    told = ranks.broadcast_bytes(b"" if found is None else json.dumps(found.summary()).encode())
    return Handover.of_summary(json.loads(told), found.state if found else None) if told else None


def build_cooldown_step(
    config: StageTwoConfig, handover: Handover, network: nn.Cell, steps_per_epoch: int, ranks: Ranks = ALONE
) -> TrainStep:
    """Build stage 2's step without a search: stage 1's step, whose rate is brought to 0.

    The optimizer, the loss scale and the EMA each go on with their state from stage 1, if WEIGHTS have it; otherwise
    they begin anew.

    Args:
        config: configuration of stage 2, with the parts of stage 1.
        handover: what stage 1 hands over.
        network: the network, with the weights of stage 1.
        steps_per_epoch: steps in an epoch of stage 2.
        ranks: rank 0 has the state.
    """
    optimizer = build_cooldown_optimizer(handover, network, steps_per_epoch, config.n_epochs, ranks)
    step = join_step(config, network, optimizer, ranks)
    take_over_parts(step, handover, ranks)
    return step


def take_over_parts(step: nn.Cell, handover: Handover, ranks: Ranks) -> None:
    """Set the loss scale and the EMA of a step to their state from stage 1, each if WEIGHTS have it."""
    for prefix in _PARTS_STATE:
        part = [parameter for parameter in step.get_parameters() if parameter.name.startswith(prefix)]
        if handover.state is not None and all(parameter.name in handover.state for parameter in part):
            from_arrays(part, handover.state, "WEIGHTS")
        ranks.broadcast(part)


def build_cooldown_optimizer(
    handover: Handover, network: nn.Cell, steps_per_epoch: int, n_epochs: int, ranks: Ranks = ALONE
) -> nn.Optimizer:
    """Build stage 1's optimizer with its state; its rates fall from ``factor`` times stage 1's last rate to 0.

    Warn if stage 1's epochs had a different length. ``n_epochs`` is stage 2's; the rest is as in
    ``build_cooldown_step``.
    """
    before = handover.steps_per_epoch
    if ranks.rank == 0 and before not in (None, steps_per_epoch):
        _log.warning(
            f"stage 1 made {before} steps in an epoch, stage 2 makes {steps_per_epoch}, so that its rate is "
            "for batches of another size; give the batch size, the accumulation and the devices of stage 1, or set "
            "cooldown.rate"
        )
    constant = np.full(handover.updates + 1, handover.factor * handover.rate)
    rates = with_cooldown(constant, handover.updates, n_epochs * steps_per_epoch, handover.schedule)
    optimizer = build_optimizer(handover.optimizer, network, rates.tolist())
    state = state_parameters(optimizer)
    if handover.state is not None:
        from_arrays(state, handover.state, "WEIGHTS")
    ranks.broadcast(state)
    return optimizer
