"""One model for each stage."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from dimred.config.base import NO_DECAY_PATTERNS, Count, Fraction, Positive, Strict
from dimred.config.parts import (
    CheckpointConfig,
    ClippingConfig,
    DataConfig,
    EmaConfig,
    LossScaleConfig,
    ModelConfig,
    OptimizerConfig,
    PrecisionConfig,
    ScheduleConfig,
    SnapshotConfig,
    StopConfig,
)
from dimred.config.search import SearchOptions


class StageConfig(Strict):
    """What both stages have."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of the initial weights, the order of the images and their augmentation."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    tensorboard: bool = False
    """Write TensorBoard's event files too, into tensorboard/ beside metrics.jsonl."""
    label_smoothing: Fraction = 0.1
    """Label smoothing of the cross entropy."""
    all_reduce_split: tuple[Count, ...] = ()
    """Ascend, several ranks: numbers of the gradients after which a fused all-reduce ends; () fuses all into one."""
    accumulation: Count = 1
    """Micro-batches of data.batch_size in each step; the last step of an epoch may have fewer."""
    save_every_steps: Count | None = None
    """Steps from one state for --resume to the next; each epoch ends with one anyway. null: no others."""
    precision: PrecisionConfig = PrecisionConfig()
    loss_scale: LossScaleConfig = LossScaleConfig()
    clipping: ClippingConfig = ClippingConfig()
    ema: EmaConfig = EmaConfig()

    @model_validator(mode="after")
    def _sink_fits(self) -> "StageConfig":
        if self.data.sink and self.accumulation > 1:
            raise ValueError("data.sink needs batches of one shape, but accumulation ends with a smaller one; set one")
        return self


class StageOneConfig(StageConfig):
    """Stage 1: ordinary training that keeps a series of snapshots."""

    epochs: Count = 70
    """Where the run stops; the schedule may be longer."""
    evaluate_every: Count = 1
    """Epochs from one evaluation to the next."""
    schedule: ScheduleConfig = ScheduleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    snapshots: SnapshotConfig = SnapshotConfig()
    stop: StopConfig | None = None
    """End stage 1 before epochs when its averaged weights gain no more: averaged, or a section; null for never."""

    @field_validator("stop", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        """``stop: averaged`` for a section with that name."""
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _epochs_fit(self) -> "StageOneConfig":
        schedule, end = self.schedule, self.schedule.last_epoch
        if end is not None and self.epochs > end:
            raise ValueError(f"epochs is {self.epochs}, past epoch {end}, where the schedule has brought the rate to 0")
        if end is not None and schedule.name != "constant" and end > schedule.total_epochs:
            raise ValueError(
                f"schedule.cooldown ends after epoch {end}, past schedule.total_epochs {schedule.total_epochs}"
            )
        if schedule.name != "constant" and schedule.warmup_epochs >= schedule.total_epochs:
            raise ValueError(
                f"schedule.warmup_epochs is {schedule.warmup_epochs}; it must be below schedule.total_epochs"
            )
        if (schedule.name == "step") != bool(schedule.milestones):
            raise ValueError("schedule.milestones goes with schedule.name step: give both, or neither")
        return self

    @model_validator(mode="after")
    def _stop_has_snapshots(self) -> "StageOneConfig":
        if self.stop and (self.snapshots.keep < 2 or self.snapshots.first_epoch > self.epochs):
            raise ValueError(
                f"stop averages snapshots, but snapshots.keep is {self.snapshots.keep} and snapshots.first_epoch "
                f"{self.snapshots.first_epoch}; keep two at least, and begin before epochs, which is {self.epochs}"
            )
        return self


class StageTwoConfig(SearchOptions, StageConfig):
    """Stage 2: the search in the subspace."""

    epochs: Count = 2
    """Passes over the searched split."""
    start: str = "best"
    """Where the search begins: best (on the val split, of last and averages of the snapshots over many windows and
    profiles), the mean of the snapshots, last (WEIGHTS as they are), or a checkpoint's path."""
    search_split: Literal["train", "val"] = "train"
    """The split that gives directions and line-search losses."""
    keep_best: bool = True
    """Keep the best of the start, every epoch and the mean of the latest epochs on the val split, not the last."""
    n_components: Count = 32
    """Leading directions to search in, and those of a basis that is fitted for the search."""
    learning_rate: Positive = 0.1
    """Learning rate of sgd and average."""
    learning_rate_schedule: Literal["linear", "constant"] = "linear"
    """Of the learning rate: linear to 0 at the end, or constant."""
    weight_decay: Fraction = 0.0
    """Weight decay with each accepted step, of every parameter that no_decay doesn't spare."""
    no_decay: tuple[str, ...] = NO_DECAY_PATTERNS
    """Patterns of the names of parameters without weight decay: BatchNorm's gamma and beta, and biases."""
    reestimate_batch_norm: bool = True
    """Show the accuracy with re-estimated BatchNorm statistics too."""
    reestimate_batches: Count = 50
    """Training batches for that."""

    @model_validator(mode="before")
    @classmethod
    def _accept_n_component(cls, data: Any) -> Any:
        if isinstance(data, dict) and "n_component" in data:
            data = dict(data)
            data.setdefault("n_components", data.pop("n_component"))
        return data
