"""One validated model per stage, loaded from YAML; an unknown key is an error."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dimred.errors import ConfigError

Fraction = Annotated[float, Field(ge=0, lt=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Channels = tuple[float, float, float]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(_Strict):
    """Which network, see ``dimred.models.resnet``."""

    name: Literal["resnet50", "resnet18", "resnet_small"] = "resnet50"
    n_classes: Annotated[int, Field(ge=2)] = 1001
    initialisation: Literal["xavier_uniform", "xavier_normal", "kaiming", "truncated_normal"] = "xavier_uniform"


class DataConfig(_Strict):
    """How images become batches, see ``dimred.data.image_folder``."""

    image_size: Count = 224
    batch_size: Count = 256
    augmentation: Literal["random_resized_crop", "pad_crop", "none"] = "random_resized_crop"
    resize: bool = True
    mean: Channels = (123.675, 116.28, 103.53)
    std: Channels = (58.395, 57.12, 57.375)
    workers: Count = 2
    eval_split: Literal["val", "test"] = "val"


class CooldownConfig(_Strict):
    """The rate reached after ``after_epoch`` is brought linearly to 0 over ``epochs``."""

    after_epoch: Count
    epochs: Count


class ScheduleConfig(_Strict):
    """Learning rate: 0 to ``peak`` in the warm-up, then linearly to 0 at ``total_epochs``, or sooner in a cooldown."""

    peak: Annotated[float, Field(gt=0)] = 0.8
    warmup_epochs: Annotated[int, Field(ge=0)] = 5
    total_epochs: Count = 90
    cooldown: CooldownConfig | None = None


class OptimizerConfig(_Strict):
    """Momentum SGD; the decay spares BatchNorm's gamma and beta and all biases."""

    momentum: Fraction = 0.9
    weight_decay: Fraction = 1e-4


class CheckpointConfig(_Strict):
    """Full checkpoints: weights, statistics, optimizer state."""

    every_epochs: Count = 10
    keep: Count = 10


class SnapshotConfig(_Strict):
    """The rolling series for PCA: trainable weights only."""

    per_epoch: Count = 1
    first_epoch: Count = 1
    keep: Count = 40


class StageConfig(_Strict):
    """What both stages have."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    label_smoothing: Fraction = 0.1


class StageOneConfig(StageConfig):
    """Stage 1: ordinary training that keeps a series of snapshots."""

    epochs: Count = 70
    evaluate_every: Count = 1
    schedule: ScheduleConfig = ScheduleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    snapshots: SnapshotConfig = SnapshotConfig()

    @model_validator(mode="after")
    def _epochs_fit(self) -> "StageOneConfig":
        cooldown = self.schedule.cooldown
        end = self.schedule.total_epochs if cooldown is None else cooldown.after_epoch + cooldown.epochs
        if self.epochs > end:
            raise ValueError(f"epochs is {self.epochs}, past epoch {end}, where the schedule has brought the rate to 0")
        if end > self.schedule.total_epochs:
            raise ValueError(
                f"schedule.cooldown ends after epoch {end}, past schedule.total_epochs {self.schedule.total_epochs}"
            )
        if self.schedule.warmup_epochs >= self.schedule.total_epochs:
            raise ValueError(
                f"schedule.warmup_epochs is {self.schedule.warmup_epochs}; it must be below schedule.total_epochs"
            )
        return self


class StageTwoConfig(StageConfig):
    """Stage 2: the search in the subspace. The options' meaning: ``dimred.SubspaceTrainStep``."""

    epochs: Count = 2
    start: str = "mean"
    search_split: Literal["train", "val"] = "train"
    keep_best: bool = True
    search: Literal["bfgs", "sgd", "average"] = "bfgs"
    n_components: Count = 32
    rho: OpenFraction = 0.55
    gamma: Fraction = 0.9
    alpha: Annotated[float, Field(ge=0)] = 0.001
    sigma: OpenFraction = 0.4
    max_trials: Count = 10
    curvature_pair: Literal["consecutive", "same_batch"] = "consecutive"
    damping: bool = False
    initial_scaling: bool = False
    max_rejected_steps: Count = 100
    max_step: Annotated[float, Field(gt=0)] | Literal["trajectory"] | None = None
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    learning_rate_schedule: Literal["linear", "constant"] = "linear"
    momentum: Fraction = 0.9
    weight_decay: Fraction = 0.0
    reestimate_batch_norm: bool = True
    reestimate_batches: Count = 50

    @model_validator(mode="before")
    @classmethod
    def _accept_n_component(cls, data: Any) -> Any:
        if isinstance(data, dict) and "n_component" in data:
            data = dict(data)
            data.setdefault("n_components", data.pop("n_component"))
        return data


Stage = TypeVar("Stage", bound=StageConfig)


def load_config(stage: type[Stage], path: Path, overrides: Sequence[str] = ()) -> Stage:
    """The configuration of a stage: the file, then each ``key=value`` override, validated as a whole.

    Args:
        stage: ``StageOneConfig`` or ``StageTwoConfig``.
        path: a YAML file.
        overrides: such as ``rho=0.5`` or ``data.batch_size=64``; the value is read as YAML.

    Raises:
        ConfigError: names every key that is unknown or has a value that is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config is {str(path)!r}, which can't be read ({error}); name a YAML file") from error
    values = _parse(text, f"--config {str(path)!r}")
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"--config {str(path)!r} holds no keys; expected lines such as 'epochs: 70'")
    for override in overrides:
        _apply(values, override)
    try:
        return stage.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(stage, error))) from error


def save_config(config: StageConfig, path: Path) -> None:
    """Write the resolved configuration beside a run; ``load_config`` reads it back to an equal one."""
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8")


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = " ".join(str(error).split())[:200]
        raise ConfigError(f"{source} is not valid YAML: {where}") from error


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set is {override!r}; expected key=value, such as epochs=2 or data.batch_size=64")
    *parents, name = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override!r}: {parent!r} is a value, it has no keys below it")
    values[name] = _parse(text, f"--set {key}")


def _explain(stage: type[BaseModel], error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            nearest = difflib.get_close_matches(key, list(_keys(stage)), n=1, cutoff=0.0)
            yield f"unknown key {key!r}; did you mean {nearest[0]!r}?"
        elif key:
            value = repr(problem["input"])[:80]
            yield f"{key} is {value}: {problem['msg']}"
        else:
            yield problem["msg"].removeprefix("Value error, ")


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _keys(part, f"{prefix}{name}.")
