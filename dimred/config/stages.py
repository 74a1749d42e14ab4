"""The configuration of each stage as a model: its keys with types, defaults and meanings, and rules between keys."""

import math
from collections.abc import Mapping
from fractions import Fraction as ExactFraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dimred.config.base import Count, Epochs, Fraction, NumberOrFraction, OwnFactory, Strict, flatten
from dimred.config.parts import (
    CheckpointConfig,
    ClippingConfig,
    CooldownConfig,
    DataConfig,
    EmaConfig,
    LossScaleConfig,
    ModelConfig,
    OptimizerConfig,
    PrecisionConfig,
    ProfileConfig,
    ScheduleConfig,
    SnapshotConfig,
    StopConfig,
)
from dimred.config.search import BOOST_OPTIONS, SearchConfig
from dimred.errors import ConfigError

OTHER_METHOD = {"search": "cooldown", "cooldown": "search"}
PARTS_OF_STEP = ("accumulation", "precision", "loss_scale", "clipping", "ema")
_EPOCHS: dict[str, int | str] = {"search": 2, "cooldown": "10%"}


def lay_over(shared: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a stage's values over the shared ones, a section of keys key by key."""
    values = dict(shared)
    for name, value in section.items():
        below = values.get(name)
        values[name] = {**below, **value} if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return values


class StageConfig(Strict):
    """The keys that both stages have."""

    NEW_KEYS: ClassVar[dict[str, str]] = {
        **{f"dim_reduce.{name}": f"set search.{name} of stage_2" for name in BOOST_OPTIONS},
        "pca_mat_path": "give the argument PCA_MAT of dimred train stage-2",
        "weight_load_dir": "give it to dimred pca --ckpt-dir",
        "timeout": "use dimred train --stall-timeout",
        "boost_level": "leave it out; stage_2.method says what stage 2 does",
        "boost": "leave it out; stage_2.method says what stage 2 does",
        "device_num": "use dimred train --devices",
        "device_number": "use dimred train --devices",
    }
    """A dotted key, or its last parts, of mindspore.boost or of the other stage -> what to do instead."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of the initial weights, and of the order of the samples and their augmentation."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    tensorboard: bool = False
    """Write TensorBoard's event files too, into tensorboard/ beside metrics.jsonl."""
    callback: OwnFactory | None = None
    """Your own callback by package.module:factory: the factory is called with the run's folder, and the function it
    returns with each record of metrics.jsonl. null for none."""
    loss: OwnFactory | None = None
    """Your own loss by package.module:factory, such as mindspore.nn:MSELoss, see pipelines/TUTORIAL.md; null for the
    cross entropy."""
    label_smoothing: Fraction = 0.1
    """Label smoothing of the cross entropy."""
    metric: OwnFactory | None = None
    """Your own metric to report, by package.module:factory, see pipelines/TUTORIAL.md; null for the built-in
    ones: accuracy, and with 100 classes or more also top5."""
    all_reduce_split: tuple[Count, ...] = ()
    """Ascend, several ranks: numbers of the gradients, in order, at which a fused all-reduce ends; [] fuses none."""
    deterministic: bool = False
    """Ascend: use slower kernels and collectives that give the same bits in every run; not run on a device yet."""
    profile: ProfileConfig | None = None
    accumulation: Count = 1
    """Micro-batches of data.batch_size in each step; the last step of an epoch may have fewer."""
    save_every_steps: Count | None = None
    """Steps from one saved state for --resume to the next within an epoch. One is saved at the end of each epoch, too;
    null saves no others."""
    read_every_steps: Count = 10
    """Steps between reads of the losses, and of the votes of several ranks, from the device: after a fault or a signal
    on one rank, all ranks save the state from before it within this many steps. The launcher waits 60 s after a signal,
    so read more often if steps take seconds. A search reads in each step."""
    precision: PrecisionConfig = PrecisionConfig()
    loss_scale: LossScaleConfig = LossScaleConfig()
    clipping: ClippingConfig = ClippingConfig()
    ema: EmaConfig = EmaConfig()
    reestimate_batch_norm: bool = True
    """Measure with re-estimated BatchNorm statistics too, at each evaluation; training does not change. It costs a
    second pass over data.eval_split and the forward passes of reestimate_batches; without BatchNorm, nothing."""
    reestimate_batches: Count = 50
    """Number of training batches of each rank on which BatchNorm statistics are re-estimated."""

    @property
    def uses_val(self) -> bool:
        """Return whether the split ``val`` takes part in a choice."""
        raise NotImplementedError

    @property
    def splits(self) -> list[str]:
        """Return the names of the splits that a run reads, sorted."""
        return sorted({"train", self.data.eval_split} | ({"val"} if self.uses_val else set()))

    @property
    def has_own_parts(self) -> bool:
        """Return whether network, data, loss or metric are the user's own."""
        return ":" in self.model.name or not self.data.dataset is self.loss is self.metric is None

    def eval_split_warning(self) -> str | None:
        """Return a warning if the split of the reported metric also chose the network; otherwise None."""
        if self.data.eval_split != "val" or not self.uses_val:
            return None
        return (
            "'val' is also the split that chooses, so this figure is likely too good; data.eval_split=test reports on "
            "samples that chose nothing."
        )

    @model_validator(mode="after")
    def _keys_fit(self) -> "StageConfig":
        if self.data.sink and self.accumulation > 1:
            raise ValueError(
                "data.sink needs batches of one shape, but accumulation can end with a smaller one; set only one"
            )
        return self


class StageOneConfig(StageConfig):
    """Stage 1: ordinary training that keeps a series of snapshots."""

    epochs: Epochs = 70
    """The epoch after which the run ends at the latest; the schedule may be longer."""
    evaluate_every_epochs: Count = 1
    """Epochs from one evaluation to the next."""
    schedule: ScheduleConfig = ScheduleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    snapshots: SnapshotConfig = SnapshotConfig()
    stop: StopConfig | None = None
    """End stage 1 early if its averaged weights no longer improve: averaged, or a section; null for never."""
    stage_2: dict[str, Any] = Field(default_factory=dict)
    """The file's section stage_2, for the stage 2 that follows; see ``StageTwoConfig``."""

    @field_validator("stop", mode="before", json_schema_input_type=StopConfig | Literal["averaged"] | None)
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        """Convert ``stop: averaged`` to a section with that name."""
        return {"name": value} if isinstance(value, str) else value

    @property
    def n_epochs(self) -> int:
        """Return ``epochs`` as a number, under the name that both stages share."""
        return self.epochs

    @property
    def following(self) -> "StageTwoConfig":
        """Return the configuration of the stage 2 that follows: these values of the shared keys, and ``stage_2``.

        Raises:
            ConfigError: a key of ``stage_2`` is unknown or not allowed, or does not go with a shared one.
        """
        shared = self.model_dump(mode="json", include={*StageConfig.model_fields})
        return StageTwoConfig.checked(lay_over(shared, self.stage_2))

    @property
    def uses_val(self) -> bool:
        """Return whether ``val`` decides when the run ends."""
        return self.stop is not None

    @model_validator(mode="after")
    def _sections_fit(self) -> "StageOneConfig":
        schedule, snapshots, end = self.schedule, self.snapshots, self.schedule.last_epoch
        has_series = snapshots.keep > 1 and snapshots.first_epoch <= self.epochs
        rules = (
            (end is None or self.epochs <= end,
             f"epochs is {self.epochs}, past schedule.total_epochs, {end}; raise that, or train fewer"),
            (end is None or schedule.warmup_epochs < end,
             f"schedule.warmup_epochs is {schedule.warmup_epochs}; it must be below schedule.total_epochs"),
            ((schedule.name == "step") == bool(schedule.milestones),
             "schedule.milestones goes with schedule.name step: give both, or neither"),
            (self.optimizer.name != "schedule_free" or schedule.name == "constant",
             f"schedule.name is {schedule.name}, but optimizer.name is schedule_free, whose average takes the place of "
             "a falling rate; set schedule.name to constant"),
            (self.stop is None or has_series,
             f"stop averages snapshots, but snapshots.keep is {snapshots.keep} and snapshots.first_epoch "
             f"{snapshots.first_epoch}, and epochs is {self.epochs}; keep at least two and begin by then, or set stop "
             "to null"),
        )  # fmt: skip
        if broken := [message for holds, message in rules if not holds]:
            raise ValueError("\n".join(broken))
        return self


class StageTwoConfig(StageConfig):
    """The configuration of stage 2: a search in the directions of stage 1's snapshots, or a cooldown."""

    NEW_KEYS: ClassVar[dict[str, str]] = StageConfig.NEW_KEYS | {"optimizer": "set cooldown.optimizer"}

    method: Literal["search", "cooldown"] = "search"
    """search: search in the directions of stage 1's snapshots, and keep the weights that it ends with, as published;
    cooldown: go on with stage 1's training while its rate falls to 0, and let val choose between the final weights and
    the best average of the snapshots."""
    epochs: NumberOrFraction = _EPOCHS["search"]
    """Passes over the training split: a number, or a fraction of the passes of both stages together, such as 10%. By
    default 2 for a search and 10% for a cooldown."""
    search: SearchConfig = SearchConfig()
    cooldown: CooldownConfig = CooldownConfig()

    @property
    def uses_val(self) -> bool:
        """Return whether ``val`` chooses the result."""
        return self.method == "cooldown" and self.cooldown.keep_best

    @model_validator(mode="before")
    @classmethod
    def _epochs_of_the_method(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("method") == "cooldown":
            return {"epochs": _EPOCHS["cooldown"], **values}
        return values

    @model_validator(mode="after")
    def _no_other_method(self) -> "StageTwoConfig":
        other = OTHER_METHOD[self.method]
        if other in self.model_fields_set:
            given = flatten({other: getattr(self, other).model_dump(exclude_unset=True)})
            raise ValueError(
                f"{', '.join(given)}: for the method {other}, but method is {self.method}; leave it out, or use "
                f"--set method={other}"
            )
        return self

    @model_validator(mode="after")
    def _candidates_are_kept_as_they_are_measured(self) -> "StageTwoConfig":
        if self.uses_val and not self.reestimate_batch_norm:
            raise ValueError(
                "reestimate_batch_norm is false, but the networks that val chooses from are measured with re-estimated "
                "statistics; leave it true, or set cooldown.keep_best to false"
            )
        return self

    @property
    def n_epochs(self) -> int:
        """Return ``epochs`` as a number; a fraction must have been resolved by ``with_epochs_after``."""
        return int(self.epochs)

    def with_epochs_after(self, stage_1_epochs: int | None) -> "StageTwoConfig":
        """Return a copy with ``epochs`` as a number: for a fraction f, max(1, ceil(f / (1 - f) stage_1_epochs)).

        Args:
            stage_1_epochs: epochs that stage 1 has trained; None if not known.

        Raises:
            ConfigError: ``epochs`` is a fraction, and ``stage_1_epochs`` is 0 or not known.
        """
        if isinstance(self.epochs, int):
            return self
        if not stage_1_epochs:
            unknown = "the name of WEIGHTS does not say how many stage 1 made"
            none = "WEIGHTS are of epoch 0, before stage 1's first pass"
            raise ConfigError(
                f"epochs is {self.epochs!r} of all passes, but {unknown if stage_1_epochs is None else none}; name one "
                "of stage 1's later full checkpoints, NAME-EPOCH_STEPS.ckpt, or set epochs to a number"
            )
        percent = ExactFraction(self.epochs.rstrip("%"))
        epochs = max(1, math.ceil(percent / (100 - percent) * stage_1_epochs))
        return self.model_copy(update={"epochs": epochs})
