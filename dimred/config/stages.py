"""One model for each stage."""

import math
import re
from fractions import Fraction as ExactFraction
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, field_validator, model_validator

from dimred.config.base import NO_DECAY_PATTERNS, Count, Fraction, Positive, Strict
from dimred.config.parts import (
    CheckpointConfig,
    ClippingConfig,
    DataConfig,
    EmaConfig,
    LossScaleConfig,
    ModelConfig,
    OptimizerConfig,
    Own,
    PrecisionConfig,
    ScheduleConfig,
    SnapshotConfig,
    StopConfig,
)
from dimred.config.search import SearchOptions
from dimred.errors import ConfigError


def _number_or_share(value: Any) -> Any:
    text = str(value).strip()
    share = re.fullmatch(r"(\d{1,2}(\.\d{1,6})?)\s*%", text)
    if share and ExactFraction(share[1]) > 0:
        return f"{share[1]}%"
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise ValueError("it must be a whole number of at least 1, or a share of all passes below 100%, such as 10%")
    return int(text)


_STARTS = ("best", "mean", "last")


def _average_or_file(value: str) -> str:
    if value not in _STARTS and not value.endswith((".ckpt", ".safetensors")):
        raise ValueError("it must be best, mean, last, or the path of a .ckpt or .safetensors file")
    return value


# Keys of metrics.jsonl and result.json.
_TAKEN = ("basis", "epoch", "epochs", "grad_norm", "gradients", "kept", "loss", "loss_scale", "metric", "n_overflows",
          "residual", "seconds", "sources", "start", "started_from", "step", "steps", "stopped", "trials")  # fmt: skip


class StageConfig(Strict):
    """What both stages have."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of the initial weights, the order of the images and their augmentation."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    tensorboard: bool = False
    """Write TensorBoard's event files too, into tensorboard/ beside metrics.jsonl."""
    callback: Own | None = None
    """A function of the run's folder, by package.module:factory; what it returns is called with each record of
    metrics.jsonl. null for none."""
    loss: Own | None = None
    """Your own loss by package.module:factory, such as mindspore.nn:MSELoss, see pipelines/TUTORIAL.md; null for
    cross entropy."""
    label_smoothing: Fraction = 0.1
    """Label smoothing of the cross entropy."""
    metric: Own | None = None
    """What is reported, by package.module:factory, see pipelines/TUTORIAL.md; null for accuracy."""
    all_reduce_split: tuple[Count, ...] = ()
    """Ascend, several ranks: numbers of the gradients after which a fused all-reduce ends; () fuses none."""
    accumulation: Count = 1
    """Micro-batches of data.batch_size in each step; the last step of an epoch may have fewer."""
    save_every_steps: Count | None = None
    """Steps from one state for --resume to the next; each epoch ends with one anyway. null: no others."""
    precision: PrecisionConfig = PrecisionConfig()
    loss_scale: LossScaleConfig = LossScaleConfig()
    clipping: ClippingConfig = ClippingConfig()
    ema: EmaConfig = EmaConfig()

    @property
    def metric_name(self) -> str:
        """What results and lines call the metric: of ``package.module:factory`` the last part."""
        return "accuracy" if self.metric is None else re.split("[:.]", self.metric)[-1]

    @model_validator(mode="after")
    def _metric_has_a_name_of_its_own(self) -> "StageConfig":
        if self.metric_name in _TAKEN:
            raise ValueError(f"metric is {self.metric!r}, but results have another {self.metric_name!r}; rename it")
        return self

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
    """Stage 2. Its defaults are what measured best: stage 1's optimizer goes on, its rate brought to 0, and nothing is
    searched."""

    epochs: Annotated[int | str, BeforeValidator(_number_or_share)] = "10%"
    """Passes over the searched split: a number, or a share of the passes of both stages together, such as 10%."""
    start: Annotated[str, AfterValidator(_average_or_file)] = "last"
    """Where stage 2 begins: best (on the val split, of last and averages of the snapshots over many windows and
    profiles), the mean of the snapshots, last (WEIGHTS as they are), or a checkpoint's path."""
    search_split: Literal["train", "val"] = "train"
    """The split that gives directions and line-search losses."""
    keep_best: bool = True
    """Keep the best of the start, every epoch and means of the latest ones on the val split, not the last; with
    residual continued, averages of the snapshots too."""
    n_components: Annotated[int, Field(ge=0)] = Field(
        default=0, validation_alias=AliasChoices("n_components", "n_component")
    )
    """Leading directions to search in, and those of a basis that is fitted for the search, such as 32; 0, with residual
    continued, for a plain cooldown, which needs no basis."""
    residual: Literal["off", "published", "continued"] = "continued"
    """The step along what the subspace can't express of the gradient: off; published: gamma and alpha, both constant;
    continued: stage 1's own optimizer, with its data.batch_size, accumulation and clipping where they are left out."""
    residual_schedule: Literal["linear", "sqrt"] = "linear"
    """Of residual continued: how its rate falls to 0 over stage 2, as 1 - x or as 1 - sqrt(x)."""
    residual_factor: Positive = 0.5
    """Of residual continued: its rate begins at this multiple of stage 1's last."""
    residual_rate: Positive | None = None
    """Of residual continued: in place of the rate that stage 1 ended with, for WEIGHTS from elsewhere."""
    optimizer: OptimizerConfig | None = None
    """Of residual continued: in place of stage 1's optimizer, for WEIGHTS from elsewhere; null for stage 1's."""
    learning_rate: Positive = 0.1
    """Learning rate of sgd and average."""
    learning_rate_schedule: Literal["linear", "constant"] = "linear"
    """Of the learning rate: linear to 0 at the end, or constant."""
    weight_decay: Fraction = 0.0
    """Weight decay with each accepted step, of every parameter that no_decay doesn't spare."""
    no_decay: tuple[str, ...] = NO_DECAY_PATTERNS
    """Patterns of the names of parameters without weight decay: BatchNorm's gamma and beta, and biases."""
    reestimate_batch_norm: bool = True
    """Show the metric with re-estimated BatchNorm statistics too."""
    reestimate_batches: Count = 50
    """Training batches for that."""

    @model_validator(mode="after")
    def _start_and_split_fit(self) -> "StageTwoConfig":
        if self.start == "mean" and self.n_components == 0:
            raise ValueError("start is mean, that of the basis, but n_components is 0: there is none; use start=best")
        if self.search_split == "val" and self.residual == "continued":
            raise ValueError(
                "search_split is val, but residual continued trains all weights, and val chooses what is kept; set "
                "residual to published or off, with n_components such as 32"
            )
        return self

    @property
    def n_epochs(self) -> int:
        """``epochs`` as a number, which it is once ``with_epochs_after`` has seen stage 1."""
        return int(self.epochs)

    @property
    def starts_from_file(self) -> bool:
        """Whether ``start`` is a checkpoint's path."""
        return self.start not in _STARTS

    @property
    def adds_average(self) -> bool:
        """Whether the best average of the snapshots is a candidate of ``keep_best`` beside the start."""
        return self.keep_best and self.residual == "continued" and self.start != "best"

    def with_epochs_after(self, stage_1_epochs: int | None) -> "StageTwoConfig":
        """The same with ``epochs`` as a number: of a share s, max(1, ceil(s / (1 - s) stage_1_epochs)).

        Args:
            stage_1_epochs: None where that is not known.

        Raises:
            ConfigError: it is not known, and ``epochs`` is a share.
        """
        if isinstance(self.epochs, int):
            return self
        if stage_1_epochs is None:
            raise ConfigError(
                f"epochs is {self.epochs!r} of all passes, but the name of WEIGHTS does not say how many stage 1 made; "
                "name one of stage 1's full checkpoints, NAME-EPOCH_STEP.ckpt, or set epochs to a number"
            )
        percent = ExactFraction(self.epochs.rstrip("%"))
        return self.model_copy(update={"epochs": max(1, math.ceil(percent / (100 - percent) * stage_1_epochs))})

    def with_batches_of(self, stage_1: StageOneConfig) -> "StageTwoConfig":
        """The same with stage 1's batch size, micro-batches and clipping, each unless it was set here.

        The rate that residual continued goes on from is made for these; other residuals keep their own.

        Raises:
            ConfigError: they don't go with another option.
        """
        if self.residual != "continued":
            return self
        taken: dict[str, Any] = {"accumulation": stage_1.accumulation, "clipping": stage_1.clipping.model_dump()}
        taken = {key: value for key, value in taken.items() if key not in self.model_fields_set}
        if "batch_size" not in self.data.model_fields_set:
            taken["data"] = self.data.model_dump() | {"batch_size": stage_1.data.batch_size}
        return self.checked(self.model_dump() | taken)
