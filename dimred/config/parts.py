"""The sections of a stage's configuration: network, data, the parts of a step, schedule, checkpoints."""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dimred.config.base import (
    NO_DECAY_PATTERNS,
    Count,
    Epochs,
    Fraction,
    OpenFraction,
    Percentage,
    Positive,
    Strict,
    known_or_own,
)
from dimred.curves import CurveName
from dimred.errors import number_of

_NETWORKS = ("resnet50", "resnet18", "resnet_small", "lenet")
_DATASETS = ("image_folder", "mnist", "cifar10", "cifar100")
_OPTIMIZERS = ("momentum", "sgd", "adamw", "schedule_free")
_Level = Annotated[float, Field(ge=0, le=255)]
_Scale = Annotated[float, Field(gt=0, lt=2.0**126)]  # a loss scaled by 2^126 would overflow float32
_Spread = Annotated[float, Field(gt=0, le=255)]


def _dataset_name(name: Any) -> Any:
    """Return the name of the data; null, as in files from before data had names, stands for class folders."""
    return _DATASETS[0] if name is None else name


class ModelConfig(Strict):
    """The network; see ``dimred.models``."""

    name: Annotated[str, AfterValidator(partial(known_or_own, _NETWORKS))] = "resnet50"
    """The network: resnet50, resnet18, resnet_small, lenet (grey, 32 pixels), or your own by package.module:factory,
    such as mindcv.models:mobilenet_v1_100. The factory may take n_classes."""
    n_classes: Count = 1001
    """Number of outputs; for a classifier, at least the number of classes."""
    initialisation: Literal["xavier_uniform", "kaiming"] = "xavier_uniform"
    """How the convolutions of the built-in networks are initialised."""
    weights: str | None = None
    """A checkpoint of another network, from which stage 1 begins; null for fresh weights. Its arrays must have the
    names and shapes of the network's parameters."""
    new: tuple[str, ...] = ()
    """With weights: patterns of the parameters that stay new, and of the file's arrays that are left out, such as
    classifier.*."""

    @model_validator(mode="after")
    def _new_goes_with_weights(self) -> "ModelConfig":
        if self.new and self.weights is None:
            raise ValueError("model.new goes with model.weights: give both, or neither")
        return self

    @property
    def file_prefix(self) -> str:
        """Return the prefix of its checkpoints' names: for ``package.module:factory``, the last part."""
        return self.name.rpartition(":")[2]


class DataConfig(Strict):
    """How samples become batches; see ``dimred.data``."""

    dataset: Annotated[
        str,
        BeforeValidator(_dataset_name, json_schema_input_type=str | None),
        AfterValidator(partial(known_or_own, _DATASETS)),
    ] = "image_folder"
    """What DATA is: image_folder, class folders of images; mnist, cifar10 or cifar100, the folder with their published
    files; or your own data by package.module:factory (``dimred.data.own_dataset``)."""
    image_size: Count = 224
    """Height and width of the network's input, in pixels."""
    batch_size: Count = 256
    """Samples in a batch, on each device; with accumulation, in a micro-batch."""
    augmentation: Literal["random_resized_crop", "pad_crop", "none"] = "random_resized_crop"
    """Augmentation of training images; random_resized_crop also flips them; pad_crop pads, then crops."""
    pad: Count = 2
    """For pad_crop: the pixels of padding on each side; 4 is usual for CIFAR."""
    flip: bool = False
    """For pad_crop: flip half of the images, left to right."""
    resize: bool = True
    """Resize and centre-crop images of class folders, and resize those of mnist and cifar, unless random_resized_crop
    cuts them; false if all have image_size already."""
    mean: tuple[_Level, ...] = (123.675, 116.28, 103.53)
    """Mean of each channel of the input, on the 0 to 255 scale: three values, or one for grey mnist."""
    std: tuple[_Spread, ...] = (58.395, 57.12, 57.375)
    """Standard deviation of each channel, on the same scale."""
    workers: Count | None = None
    """Number of threads that read the data, limited to the number of processors. null for 2, or for 1 with a dataset of
    your own: with more, several threads ask it for samples at the same time, in any order."""
    sink: bool = False
    """Ascend, GPU: training batches come from a queue on the device, filled ahead. Not run on a device yet."""
    multiple_of: Count = 1
    """In each epoch, training uses a multiple of this many batches and drops the rest, as this many devices would. A
    comparison sets it, to make the steps of several devices on one."""
    damaged: Literal["stop", "replace"] = "stop"
    """What to do if an image can't be decoded: stop, or replace it with another one (dimred data check counts them)."""
    eval_split: Literal["val", "test"] = "val"
    """The split on which the metric is reported."""
    val_fraction: Fraction = 0.1
    """For mnist and cifar, which have no val: the fraction of their training samples that is set aside as val."""
    val_seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """For mnist and cifar: the seed that draws val, separate from seed, so that runs with other seeds share val."""

    @model_validator(mode="after")
    def _keys_fit(self) -> "DataConfig":
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise ValueError(
                f"data.mean has {number_of(len(self.mean), 'value')} and data.std {len(self.std)}; give each three "
                "values, or one for grey images"
            )
        if self.flip and self.augmentation != "pad_crop":
            raise ValueError(
                f"data.flip is for pad_crop, but data.augmentation is {self.augmentation}; leave it out "
                "(random_resized_crop always flips)"
            )
        return self


class MixingConfig(Strict):
    """Mixed samples in the training of stage 1; see ``dimred.data.mixing``."""

    mixup: Positive | None = None
    """Mixup: the parameter of its Beta distribution, such as 0.2; null for no mixup."""
    cutmix: Positive | None = None
    """Cutmix: the parameter of its Beta distribution, such as 1.0; null for no cutmix. With both, each batch draws
    one."""

    @property
    def is_on(self) -> bool:
        """Return whether samples are mixed."""
        return self.mixup is not None or self.cutmix is not None


class PrecisionConfig(Strict):
    """Mixed precision; see ``dimred.train_step.precision``."""

    level: Literal["O0", "O1", "O2", "O3"] = "O0"
    """O0: float32; O1: convolutions and dense layers in half precision; O2: all but normalisation; O3: all."""
    dtype: Literal["float16", "bfloat16"] = "float16"
    """The half-precision type; bfloat16 needs a device that supports it."""
    keep_batch_norm: bool | None = None
    """Whether BatchNorm stays float32 at the levels O2 and O3; null means yes at O2, no at O3."""
    casts: dict[str, Literal["float16", "bfloat16", "float32"]] = Field(default_factory=dict)
    """Pattern of a cell's name in the network -> the type that it computes in, whatever the level says."""
    jit_level: Literal["O0", "O1"] | None = None
    """Ascend, GPU: how far the graphs of a step are compiled. O0 launches kernel by kernel and compiles fastest; O1
    also fuses kernels. null for MindSpore's choice for the device. Not run on a device yet."""
    hf32: bool | None = None
    """Ascend: compute float32 convolutions and matrix products in HF32, with an 11-bit mantissa: faster, less exact.
    false for neither; null for CANN's choice, which is convolutions only. A search uses neither. Not run on a device
    yet."""
    tf32: bool = False
    """GPU: compute float32 convolutions and matrix products in TF32, with a 10-bit mantissa: faster on Ampere and newer
    GPUs, less exact. MindSpore's own choice would be convolutions only. A search uses neither. Not run on a device
    yet."""


class ProfileConfig(Strict):
    """A record of some steps by MindSpore's profiler, in profile/ of each rank's folder, for MindStudio Insight. These
    steps are slower, and the run waits after them until the record is evaluated. null for no profile."""

    first_step: Annotated[int, Field(ge=2)] = 10
    """The first step to record, counted from the start of the process, also after --resume; step 1 compiles."""
    steps: Count = 5
    """Number of recorded steps; each takes megabytes of disk on a device."""


class LossScaleConfig(Strict):
    """Loss scaling for mixed precision; see ``dimred.train_step.loss_scale``."""

    name: Literal["none", "static", "dynamic"] = "none"
    """none; static: the scale is constant; dynamic: it shrinks on overflow and grows after a run of good steps."""
    scale: _Scale | None = None
    """The scale, or for dynamic the first one; if null, 1024 (static) or 65536 (dynamic)."""
    drop_overflow: bool = True
    """For static: drop a step whose gradient is not finite; false applies every gradient. A search skips such steps
    anyway."""
    factor: Annotated[float, Field(gt=1)] = 2.0
    """For dynamic: the factor by which the scale shrinks and grows."""
    window: Count = 2000
    """For dynamic: good steps in a row before the scale grows."""
    smallest: _Scale = 1.0
    """For dynamic: lower bound of the scale."""
    largest: _Scale = 2.0**24
    """For dynamic: upper bound of the scale."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> "LossScaleConfig":
        first = 2.0**16 if self.scale is None else self.scale
        if self.name == "dynamic" and not self.smallest <= first <= self.largest:
            raise ValueError(
                f"loss_scale.scale is {first:g}; it must lie between smallest ({self.smallest:g}) and largest "
                f"({self.largest:g})"
            )
        return self


class ClippingConfig(Strict):
    """A bound on the gradient's norm; see ``dimred.train_step.clipping``."""

    norm: Positive | None = None
    """Largest global norm; longer gradients are scaled down to it. null for no bound."""


class EmaConfig(Strict):
    """An average of weights and BatchNorm statistics, measured beside the raw ones; see ``dimred.train_step.ema``."""

    decay: Fraction | None = None
    """Fraction of the average that is kept at each applied step, such as 0.999; null for none."""
    ramp: bool = True
    """For decay: multiply it by 1 - exp(-t / 2000) at update t, so that early weights are forgotten sooner. With it,
    the average in a run with fewer than a few thousand updates is almost the raw network."""
    half_life: Percentage | None = None
    """In place of decay: the half-life as a fraction of the steps so far, such as 5% or 0.05, so that the average
    reaches back further the longer the run is; null for none."""

    @property
    def is_on(self) -> bool:
        """Return whether there is an average."""
        return self.decay is not None or self.half_life is not None

    @model_validator(mode="after")
    def _one_of_them(self) -> "EmaConfig":
        if self.decay is not None and self.half_life is not None:
            raise ValueError(f"ema.half_life is {self.half_life}, and ema.decay is {self.decay}; give one of them")
        return self


class PartsOfStep(Strict):
    """What a step consists of, apart from its optimizer; a comparison gives stage 1's parts to a cooldown."""

    accumulation: Count = 1
    """Micro-batches of data.batch_size in each step; the last step of an epoch may have fewer."""
    precision: PrecisionConfig = PrecisionConfig()
    loss_scale: LossScaleConfig = LossScaleConfig()
    clipping: ClippingConfig = ClippingConfig()
    ema: EmaConfig = EmaConfig()


class ScheduleConfig(Strict):
    """The learning rate: it rises from 0 to ``peak`` in the warm-up, and then follows ``name``."""

    name: Literal[CurveName, "step", "constant"] = "linear"
    """After the warm-up: a fall to 0 at total_epochs by a curve, steps down at milestones, or a constant rate."""
    peak: Positive = 0.8
    """The largest learning rate."""
    warmup_epochs: Annotated[int, Field(ge=0)] = 5
    """Epochs in which the rate rises from 0 to the peak; 0 for no warm-up."""
    total_epochs: Epochs = 90
    """The epoch at whose end the schedule ends; a run may stop earlier. A constant rate ignores it."""
    milestones: tuple[Count, ...] = ()
    """For step: the epochs after which the rate falls."""
    step_factor: OpenFraction = 0.1
    """For step: the factor by which the rate falls at each milestone."""

    @property
    def last_epoch(self) -> int | None:
        """Return the epoch at whose end the schedule ends; None for a constant rate, which has no end."""
        return None if self.name == "constant" else self.total_epochs

    @property
    def falls_to_zero(self) -> bool:
        """Return whether the schedule ends with a rate of 0, which leaves a cooldown nothing to lower."""
        return self.name not in ("step", "constant")

    def horizon(self, n_epochs: int) -> int:
        """Return how many epochs to make rates for: total_epochs, or max(warmup_epochs + 1, n_epochs) if constant."""
        return max(self.warmup_epochs + 1, n_epochs) if self.name == "constant" else self.total_epochs


class OptimizerConfig(Strict):
    """How gradients become updates; see ``dimred.train_step.optimizers``."""

    name: Annotated[str, AfterValidator(partial(known_or_own, _OPTIMIZERS))] = "momentum"
    """momentum, sgd, adamw, schedule_free, or your own by package.module:factory, a function of groups and rates."""
    momentum: Fraction | None = None
    """Momentum coefficient, for momentum (0.9 if null) and sgd (0 if null)."""
    nesterov: bool | None = None
    """For sgd: whether to use Nesterov's momentum."""
    beta1: Fraction | None = None
    """For adamw: decay of the first moment; 0.9 if null."""
    beta2: Fraction | None = None
    """For adamw: decay of the second moment; 0.999 if null."""
    eps: Positive | None = None
    """For adamw: number added to the root of the second moment; 1e-8 if null."""
    beta: OpenFraction | None = None
    """For schedule_free: weight of the averaged point in the point where gradients are taken; 0.9 if null."""
    weight_decay: Fraction = 1e-4
    """Weight decay of every parameter that no_decay doesn't exempt."""
    no_decay: tuple[str, ...] = NO_DECAY_PATTERNS
    """Name patterns of the parameters without weight decay; by default normalisation's gamma and beta, and biases."""


class CheckpointConfig(Strict):
    """Full checkpoints, which hold weights, statistics and the optimizer's state."""

    every_epochs: Count = 10
    """Epochs from one full checkpoint to the next; the last epoch always has one."""
    keep: Count = 10
    """Number of the newest full checkpoints to keep."""


class PointConfig(Strict):
    """The checkpoints of stage 2's epochs, which a report draws and nothing else reads."""

    keep: Count | None = None
    """Number of the newest epochs whose checkpoints are kept; null keeps all. The checkpoints of the start, of the end
    and of what val chooses from are always kept. A report draws a search's path only if all epochs are there."""


class StopConfig(Strict):
    """End stage 1 when the average of its snapshots no longer improves on the val split."""

    name: Literal["averaged"] = "averaged"
    """The weights to watch: averaged, the mean of the newer half of the snapshots, with BatchNorm re-estimated."""
    every_epochs: Count = 2
    """Epochs from one measurement to the next; each takes one pass over val and one over reestimate_batches."""
    patience: Count = 3
    """Stage 1 ends after this many measurements in a row without a gain of more than one standard error."""


class SnapshotConfig(Strict):
    """The rolling series of snapshots, for averages and the PCA; they hold trainable weights only."""

    per_epoch: Count = 1
    """Snapshots taken in each epoch, evenly spaced."""
    first_epoch: Count = 1
    """The first epoch in which snapshots are taken; weights from early epochs are too far from the final ones."""
    keep: Count = 40
    """Number of the newest snapshots to keep; 32 directions need 33."""
    content: Literal["point", "mean"] = "point"
    """point: a snapshot holds the weights as they are; mean: their mean over the steps since the last snapshot, or
    since first_epoch began, which takes two copies of the weights and two additions a step. For a language model,
    averages of means were better than those of points, and a search's directions worse; for photographs neither
    differed (tests/studies/after_adamw.md)."""
    format: Literal["ckpt", "safetensors"] = "ckpt"
    """Format of the snapshot files. A ckpt file has a checksum that every reader verifies. Other frameworks can read
    safetensors files too, but in those only a PCA notices a byte that the disk has changed."""
