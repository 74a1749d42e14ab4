"""The configuration of each stage as a model: its keys with their types, defaults and meanings, and what must fit."""

import math
from fractions import Fraction as ExactFraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dimred.config.base import STARTS, Count, Epochs, Fraction, NumberOrFraction, OwnFactory, Recipe, Start, Strict
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
from dimred.config.search import SearchConfig
from dimred.errors import ConfigError

_CHOSEN = "-average.ckpt"  # ends the name of an average of snapshots that ``val`` chose


class StageConfig(Strict):
    """The keys that both stages have."""

    NEW_KEYS: ClassVar[dict[str, str]] = {
        "evaluate_every": "evaluate_every_epochs", "read_every": "read_every_steps"
    }  # fmt: skip

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
    ones: accuracy, and from 100 classes on top5 beside it."""
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
    """Steps between reads of the device, for the losses and the votes of several ranks: after a fault or a signal on
    one rank, all ranks save the state from before it within this many steps. The launcher waits 60 s after a signal,
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
        """Return whether the split ``val`` takes part in the training or in a choice."""
        raise NotImplementedError

    @property
    def trained_split(self) -> str:
        """Return the name of the split whose batches the steps take."""
        return "train"

    @property
    def splits(self) -> list[str]:
        """Return the names of the splits that a run reads, sorted."""
        return sorted({"train", self.trained_split, self.data.eval_split} | ({"val"} if self.uses_val else set()))

    @property
    def optional_splits(self) -> list[str]:
        """Return the splits that a run reads if DATA has them."""
        return []

    def eval_split_warning(self, *files: str) -> str | None:
        """Return a warning if the split of the reported metric also chose the network; otherwise None.

        Args:
            files: the file that is measured, if it is not the network that the run ends with.
        """
        is_average = any(file.endswith(_CHOSEN) for file in files)
        if self.data.eval_split != "val" or not (self.uses_val or is_average):
            return None
        return (
            "'val' is also the split that chooses, so this figure is likely too good; data.eval_split=test reports on "
            "samples that chose nothing."
        )

    @model_validator(mode="after")
    def _keys_fit(self) -> "StageConfig":
        if self.data.sink and self.accumulation > 1:
            raise ValueError("data.sink needs batches of one shape, but accumulation ends with a smaller one; set one")
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
    stage_2: Recipe | None = None
    """The recipe that stage 2 takes if it is started without a configuration, such as digits_stage; null for the
    cooldown by the defaults."""
    stop: StopConfig | None = None
    """End stage 1 early if its averaged weights no longer improve: averaged, or a section; null for never."""

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
    def uses_val(self) -> bool:
        """Return whether ``val`` decides when the run ends."""
        return self.stop is not None

    @model_validator(mode="after")
    def _sections_fit(self) -> "StageOneConfig":
        schedule, end = self.schedule, self.schedule.last_epoch
        if end is not None and self.epochs > end:
            raise ValueError(f"epochs is {self.epochs}, past schedule.total_epochs, {end}; raise that, or train fewer")
        if schedule.name != "constant" and schedule.warmup_epochs >= schedule.total_epochs:
            raise ValueError(
                f"schedule.warmup_epochs is {schedule.warmup_epochs}; it must be below schedule.total_epochs"
            )
        if (schedule.name == "step") != bool(schedule.milestones):
            raise ValueError("schedule.milestones goes with schedule.name step: give both, or neither")
        if self.optimizer.name == "schedule_free" and schedule.name != "constant":
            raise ValueError(
                f"schedule.name is {schedule.name}, but optimizer.name is schedule_free, whose average takes the place "
                "of a falling rate; set schedule.name to constant"
            )
        if self.stop and (self.snapshots.keep < 2 or self.snapshots.first_epoch > self.epochs):
            raise ValueError(
                f"stop averages snapshots, but snapshots.keep is {self.snapshots.keep} and snapshots.first_epoch "
                f"{self.snapshots.first_epoch}, and epochs is {self.epochs}; keep at least two and begin by then, or "
                "set stop to null"
            )
        return self


class StageTwoConfig(StageConfig):
    """The configuration of stage 2, by default a cooldown: stage 1's training goes on while its rate falls to 0."""

    NEW_KEYS: ClassVar[dict[str, str]] = StageConfig.NEW_KEYS | {
        "optimizer": "cooldown.optimizer",
        "dim_reduce.pca_mat_path": "the argument PCA_MAT", "dim_reduce.weight_load_dir": "dimred pca --ckpt-dir",
    }  # fmt: skip

    epochs: NumberOrFraction = "10%"
    """Passes over the training split: a number, or a fraction of the passes of both stages together, such as 10%."""
    cooldown: CooldownConfig | None = CooldownConfig()
    search: SearchConfig | None = None
    """Also search in the directions of stage 1's snapshots, in each step: a section whose keys all have defaults; null
    for no search."""
    start: Start = "last"
    """The weights that stage 2 begins with: last (WEIGHTS as they are), best (on the val split, the best among last and
    averages of the snapshots over several windows and profiles), mean (with a search: the mean of the snapshots behind
    its basis), or a checkpoint's path."""
    keep_best: bool = True
    """Keep the network with the lowest value of the trained loss on the val split, not the last one. Without a
    cooldown, the candidates are the start, each epoch and the mean of the epochs; with one, they are the start, the
    last epoch, the mean of the epochs and, unless start is best, the best average of the snapshots."""

    @property
    def uses_val(self) -> bool:
        """Return whether ``val`` chooses the start or the result, or is searched on."""
        return self.keep_best or self.start == "best" or self.trained_split == "val"

    def eval_split_warning(self, *files: str) -> str | None:
        """Return a warning also if ``val`` of an earlier run chose the average that this one starts from."""
        return super().eval_split_warning(*files, self.start)

    @property
    def trained_split(self) -> str:
        """Return the name of the split whose batches the steps take."""
        return "train" if self.search is None else self.search.split

    @model_validator(mode="after")
    def _sections_fit(self) -> "StageTwoConfig":
        if self.cooldown is None and self.search is None:
            raise ValueError("cooldown and search are both null, so stage 2 would do nothing; set one of them")
        if self.start == "mean" and self.search is None:
            raise ValueError("start is mean, that of a search's basis, but search is null; use start=best")
        if self.cooldown and self.search and (name := self.search.without_effect_beside_an_optimizer):
            raise ValueError(f"search.{name} has no effect beside a cooldown, which moves there; leave it out")
        if self.cooldown is not None and self.trained_split == "val":
            raise ValueError(
                "search.split is val, but a cooldown trains all weights, and val chooses what is kept; set cooldown to "
                "null"
            )
        if self.keep_best and self.trained_split == "val":
            raise ValueError(
                "search.split is val, and keep_best would choose by the samples that were searched on; set "
                "keep_best=false, or search.split=train"
            )
        return self

    @property
    def n_epochs(self) -> int:
        """Return ``epochs`` as a number; a fraction must have been resolved by ``with_epochs_after``."""
        return int(self.epochs)

    @property
    def starts_from_file(self) -> bool:
        """Return whether ``start`` is a checkpoint's path."""
        return self.start not in STARTS

    @property
    def adds_average(self) -> bool:
        """Return whether the best average of the snapshots is a candidate of ``keep_best``, beside the start."""
        return self.keep_best and self.cooldown is not None and self.start != "best"

    @property
    def looks_for_average(self) -> bool:
        """Return whether a better average of the snapshots is looked for beside a last network that is kept anyway."""
        return not self.keep_best and self.start == "last" and self.trained_split != "val"

    @property
    def optional_splits(self) -> list[str]:
        """Return the splits that a run reads only if DATA has them: ``val``, to compare an average of the snapshots."""
        return ["val"] if self.looks_for_average and "val" not in self.splits else []

    def with_epochs_after(self, stage_1_epochs: int | None) -> "StageTwoConfig":
        """Return a copy with ``epochs`` as a number: for a fraction f, max(1, ceil(f / (1 - f) stage_1_epochs)).

        Args:
            stage_1_epochs: epochs that stage 1 has trained; None if not known.

        Raises:
            ConfigError: ``epochs`` is a fraction, and ``stage_1_epochs`` is 0 or not known.
        """
        if isinstance(self.epochs, int):
            return self
        if stage_1_epochs == 0:
            raise ConfigError(
                f"epochs is {self.epochs!r} of all passes, but WEIGHTS are of epoch 0, before stage 1's first pass; "
                "name a later full checkpoint, or set epochs to a number"
            )
        if stage_1_epochs is None:
            raise ConfigError(
                f"epochs is {self.epochs!r} of all passes, but the name of WEIGHTS does not say how many stage 1 made; "
                "name one of stage 1's full checkpoints, NAME-EPOCH_STEPS.ckpt, or set epochs to a number"
            )
        percent = ExactFraction(self.epochs.rstrip("%"))
        return self.model_copy(update={"epochs": max(1, math.ceil(percent / (100 - percent) * stage_1_epochs))})
