"""The configuration of each stage as a model: its keys with types, defaults and meanings, and rules between keys."""

import math
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction as ExactFraction
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, create_model, field_validator, model_validator

from dimred.config.base import (
    NUMBER_OR_FRACTION,
    Count,
    Epochs,
    Fraction,
    NumberOrFraction,
    OwnFactory,
    Strict,
    flatten,
    is_own,
    known_or_own,
)
from dimred.config.cooldown import CooldownConfig
from dimred.config.methods import MethodConfig, own_method, section_name
from dimred.config.parts import (
    CheckpointConfig,
    DataConfig,
    MixingConfig,
    ModelConfig,
    OptimizerConfig,
    PartsOfStep,
    PointConfig,
    ProfileConfig,
    ScheduleConfig,
    SnapshotConfig,
    StopConfig,
)
from dimred.config.search import BOOST_OPTIONS, SearchConfig
from dimred.errors import ConfigError


def lay_over(shared: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a stage's values over the shared ones, a section of keys key by key."""
    values = dict(shared)
    for name, value in section.items():
        below = values.get(name)
        values[name] = {**below, **value} if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return values


class _TaskConfig(Strict):
    """What both stages compute, and how a run reads and saves."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of the initial weights, and of the order of the samples and their augmentation."""
    mode: Literal["graph", "pynative"] = "graph"
    """graph: MindSpore compiles a step before running it; pynative: it runs each operation at once, and a network may
    contain any Python. dimred/train_step/README.md says what pynative costs."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    tensorboard: bool = False
    """Write TensorBoard's event files too, into tensorboard/ beside metrics.jsonl."""
    callback: OwnFactory | None = None
    """Your own callback by package.module:factory: the factory is called with the run's folder, and the function it
    returns with each record of metrics.jsonl. null for none."""
    loss: OwnFactory | None = None
    """Your own loss by package.module:factory, such as mindspore.nn:MSELoss (pipelines/TUTORIAL.md); null for the
    cross entropy."""
    label_smoothing: Fraction = 0.1
    """Label smoothing of the cross entropy."""
    metric: OwnFactory | None = None
    """Your own metric to report, by package.module:factory (pipelines/TUTORIAL.md); null for the built-in
    ones: accuracy, and with 100 classes or more also top5."""
    all_reduce_split: tuple[Count, ...] = ()
    """Ascend, several ranks: numbers of the gradients, in order, at which a fused all-reduce ends; [] fuses none."""
    deterministic: bool = False
    """Ascend, GPU: use slower kernels and collectives that give the same bits in every run. Not run on a device yet."""
    profile: ProfileConfig | None = None
    save_every_steps: Count | None = None
    """Steps between the states that are saved for --resume within an epoch. A state is also saved at the end of each
    epoch; null saves only these."""
    read_every_steps: Count = 10
    """Steps between reads from the device: of the losses, and of the ranks' votes on whether all is well. So within
    this many steps after a fault or a signal on one rank, all ranks save the state from before it. The launcher waits
    60 s after a signal: read more often if steps take seconds. A search reads in each step."""


class StageConfig(PartsOfStep, _TaskConfig):
    """The keys that both stages have: the task's, those of the step's parts, and how BatchNorm is measured."""

    NEW_KEYS: ClassVar[dict[str, str]] = {
        **{f"dim_reduce.{name}": f"set search.{name} of stage_2" for name in BOOST_OPTIONS},
        "pca_mat_path": "give the argument PCA_MAT of dimred train stage-2",
        "weight_load_dir": "give it to dimred pca --ckpt-dir",
        "timeout": "use dimred train --stall-timeout",
        "boost_level": "leave it out; stage_2.method says what stage 2 does",
        "boost": "leave it out; stage_2.method says what stage 2 does",
        "device_num": "use dimred train --devices",
        "device_number": "use dimred train --devices",
        **dict.fromkeys(("lr", "learning_rate"), "set schedule.peak, or in a cooldown cooldown.factor"),
    }
    """A dotted key, or its last parts, of mindspore.boost or of the other stage -> what to do instead."""

    reestimate_batch_norm: bool = True
    """Measure with re-estimated BatchNorm statistics too, at each evaluation; training does not change. It costs a
    second pass over data.eval_split and the forward passes of reestimate_batches; without BatchNorm, nothing."""
    reestimate_batches: Count = 50
    """Number of training batches of each rank on which BatchNorm statistics are re-estimated."""

    @property
    def n_epochs(self) -> int:
        """Return the last epoch of the run, at the latest."""
        raise NotImplementedError

    @property
    def uses_val(self) -> bool:
        """Return whether the split ``val`` takes part in a choice."""
        raise NotImplementedError

    @property
    def needs_exact_float32(self) -> bool:
        """Return whether float32 must not be computed in a shorter type, such as TF32."""
        return False

    @property
    def splits(self) -> list[str]:
        """Return the names of the splits that a run reads, sorted."""
        splits = {"train", self.data.eval_split}
        if self.uses_val:
            splits.add("val")
        return sorted(splits)

    @property
    def fixed_keys(self) -> frozenset[str]:
        """Return keys that a resume may not change, though it may in other configurations; by default none."""
        return frozenset()

    @property
    def has_own_parts(self) -> bool:
        """Return whether network, data, loss or metric are the user's own."""
        names = (self.model.name, self.data.dataset, self.loss, self.metric)
        return any(is_own(name) for name in names if name is not None)

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
    mixing: MixingConfig = MixingConfig()
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
        problems = list(self._problems())
        if problems:
            raise ValueError(*problems)
        return self

    def _problems(self) -> Iterator[str]:
        """Yield a sentence about each pair of sections that do not go together."""
        schedule = self.schedule
        end = schedule.last_epoch
        if end is not None and self.epochs > end:
            yield f"epochs is {self.epochs}, past schedule.total_epochs, {end}; raise that, or lower epochs"
        if end is not None and schedule.warmup_epochs >= end:
            yield f"schedule.warmup_epochs is {schedule.warmup_epochs}; it must be below schedule.total_epochs"
        if (schedule.name == "step") != bool(schedule.milestones):
            yield "schedule.milestones goes with schedule.name step: give both, or neither"
        if self.optimizer.name == "schedule_free" and schedule.name != "constant":
            yield (
                f"schedule.name is {schedule.name}, but optimizer.name is schedule_free, whose average takes the place "
                "of a falling rate; set schedule.name to constant"
            )
        if self.optimizer.name == "schedule_free" and self.snapshots.content == "mean":
            yield (
                "snapshots.content is mean, but optimizer.name is schedule_free, whose snapshots hold its own average; "
                "set snapshots.content to point"
            )
        if self.stop is not None:
            yield from self._problems_of_stop()
        if self.loss is not None and self.mixing.is_on:
            yield (
                f"mixing turns labels into probabilities for the built-in loss, but loss is {self.loss!r}; set "
                "mixing.mixup and mixing.cutmix to null, or mix in your own data set"
            )

    def _problems_of_stop(self) -> Iterator[str]:
        snapshots = self.snapshots
        if snapshots.keep < 2 or snapshots.first_epoch > self.epochs:
            yield (
                f"stop averages snapshots, but snapshots.keep is {snapshots.keep}, snapshots.first_epoch is "
                f"{snapshots.first_epoch} and epochs is {self.epochs}; keep at least two and take the first by the "
                "last epoch, or set stop to null"
            )


class StageTwoConfig(StageConfig):
    """The configuration of stage 2: a search in the directions of stage 1's snapshots, a cooldown, or your own method.

    Its methods are those sections that are a ``MethodConfig``; nothing else lists their names. A user's own method,
    ``package.module:Name``, gives the model one more section; see ``with_method``.
    """

    NEW_KEYS: ClassVar[dict[str, str]] = StageConfig.NEW_KEYS | {"optimizer": "set cooldown.optimizer"}

    method: str = "search"
    """search: search in the directions of stage 1's snapshots, and keep the weights that it ends with, as published;
    cooldown: continue stage 1's training while its rate falls to 0, and let val choose between the final weights and
    the best average of the snapshots; or your own by package.module:Name (dimred/stages/README.md)."""
    epochs: NumberOrFraction = SearchConfig.default_epochs
    """Passes over the training split: a number, or a fraction of the passes of both stages together, such as 10%. By
    default 2 for a search and 10% for a cooldown."""
    checkpoints: PointConfig = PointConfig()
    search: SearchConfig = SearchConfig()
    cooldown: CooldownConfig = CooldownConfig()

    @classmethod
    def methods(cls) -> dict[str, type[MethodConfig]]:
        """Return the section of each method, by the method's name."""
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, MethodConfig)}

    @classmethod
    def with_method(cls, method: object) -> type["StageTwoConfig"]:
        """Return the model with the section of a method: for a user's own method, a subclass of ``StageTwoConfig``.

        Raises:
            ConfigError: a user's own can't be used (``own_method``), or its section would have the name of a key.
        """
        return _with_own_method(method) if isinstance(method, str) and is_own(method) else StageTwoConfig

    @classmethod
    def checked(cls, values: Mapping[str, Any], *, exact: bool = False, other_keys: Collection[str] = ()) -> Self:
        """Build the model of the method that the values name; otherwise as ``Strict.checked``."""
        model: Any = cls.with_method(values.get("method"))
        config: Any = super(StageTwoConfig, model).checked(values, exact=exact, other_keys=other_keys)
        return config

    @property
    def method_name(self) -> str:
        """Return the name of the method and of its section; for a user's own method, the last part of its path."""
        return section_name(self.method)

    @property
    def method_config(self) -> MethodConfig:
        """Return the section of the method."""
        return getattr(self, self.method_name)

    @property
    def uses_val(self) -> bool:
        """Return whether ``val`` chooses the result."""
        return self.method_config.uses_val

    @property
    def fixed_keys(self) -> frozenset[str]:
        """Return the method's fixed keys; see ``MethodConfig``."""
        return self.method_config.fixed_keys

    @property
    def needs_exact_float32(self) -> bool:
        """Return what the method says; see ``MethodConfig``."""
        return self.method_config.needs_exact_float32

    @model_validator(mode="before")
    @classmethod
    def _default_epochs_of_the_method(cls, values: Any) -> Any:
        """Set ``epochs`` to the method's default if it is left out, unless that is the default anyway."""
        if not isinstance(values, Mapping):
            return values
        section = cls.methods().get(section_name(str(values.get("method"))))
        if section is None or section.default_epochs == cls.model_fields["epochs"].default:
            return values
        return {"epochs": section.default_epochs, **values}

    @field_validator("method")
    @classmethod
    def _is_a_method(cls, method: str) -> str:
        return known_or_own(list(StageTwoConfig.methods()), method)

    @model_validator(mode="after")
    def _has_the_section_of_its_method_alone(self) -> "StageTwoConfig":
        methods = self.methods()
        if self.method_name not in methods:
            raise ValueError(f"method {self.method} is your own; build this configuration with StageTwoConfig.checked")
        for other in methods:
            if other == self.method_name or other not in self.model_fields_set:
                continue
            given = flatten({other: getattr(self, other).model_dump(exclude_unset=True)})
            raise ValueError(
                f"{', '.join(given)} can't be set, because method is {self.method}, not {other}; leave that out, or "
                f"use --set method={other}"
            )
        return self

    @model_validator(mode="after")
    def _epochs_fit_the_method(self) -> "StageTwoConfig":
        trains = self.method_config.default_epochs != 0
        if trains and self.epochs == 0:
            raise ValueError(f"epochs is 0; {NUMBER_OR_FRACTION}")
        if not trains and self.epochs != 0:
            raise ValueError(f"epochs is {self.epochs}, but the method {self.method_name} trains nothing; leave it out")
        return self

    @model_validator(mode="after")
    def _candidates_are_kept_as_they_are_measured(self) -> "StageTwoConfig":
        if self.uses_val and not self.reestimate_batch_norm:
            raise ValueError(
                "reestimate_batch_norm is false, but the networks that val chooses from are measured with re-estimated "
                f"statistics; leave it true, or turn this choice off in the section {self.method_name}"
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
        if isinstance(self.epochs, str):
            return self.model_copy(update={"epochs": _epochs_of_fraction(self.epochs, stage_1_epochs)})
        return self


def _epochs_of_fraction(fraction: str, stage_1_epochs: int | None) -> int:
    """Return stage 2's epochs; see ``StageTwoConfig.with_epochs_after``."""
    if not stage_1_epochs:
        unknown = "the name of WEIGHTS does not say how many stage 1 made"
        none = "WEIGHTS are of epoch 0, before stage 1's first pass"
        raise ConfigError(
            f"epochs is {fraction!r} of all passes, but {unknown if stage_1_epochs is None else none}; name one "
            "of stage 1's later full checkpoints, NAME-EPOCH_STEPS.ckpt, or set epochs to a number"
        )
    percent = ExactFraction(fraction.rstrip("%"))
    return max(1, math.ceil(percent / (100 - percent) * stage_1_epochs))


@cache
def _with_own_method(method: str) -> type[StageTwoConfig]:
    """Return the model of a stage 2 with a user's own method; see ``StageTwoConfig.with_method``."""
    section = own_method(method)
    name = section_name(method)
    if name in StageTwoConfig.model_fields or hasattr(StageTwoConfig, name):
        raise ConfigError(f"method is {method!r}, but {name} is the name of another key; give the class another name")
    fields: dict[str, Any] = {name: (section, Field(default_factory=section))}
    return create_model(StageTwoConfig.__name__, __base__=StageTwoConfig, __doc__=StageTwoConfig.__doc__, **fields)
