"""Which network, on which images."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dimred.config.base import Channels, Count, Strict

NETWORKS = ("resnet50", "resnet18", "resnet_small")
OWN = r"^[\w.]+:[\w.]+$"


def _known_or_own(name: str) -> str:
    if name not in NETWORKS and not re.match(OWN, name):
        raise ValueError(f"allowed: {', '.join(NETWORKS)}, or your own by package.module:factory")
    return name


class ModelConfig(Strict):
    """Which network, see ``dimred.models.resnet``."""

    name: Annotated[str, AfterValidator(_known_or_own)] = "resnet50"
    """The network: resnet50, resnet18, resnet_small, or your own by package.module:factory, a function of n_classes."""
    n_classes: Annotated[int, Field(ge=2)] = 1001
    """Outputs; at least the number of class folders."""
    initialisation: Literal["xavier_uniform", "xavier_normal", "kaiming", "truncated_normal"] = "xavier_uniform"
    """How the convolutions are initialised."""

    @property
    def file_prefix(self) -> str:
        """What the names of its checkpoints begin with: of ``package.module:factory`` the last part."""
        return self.name.rpartition(":")[2]


class DataConfig(Strict):
    """How images become batches, see ``dimred.data.image_folder``."""

    dataset: Annotated[str, Field(pattern=OWN)] | None = None
    """Your own data by package.module:factory, see ``dimred.data.own_dataset``; null for class folders of images."""
    image_size: Count = 224
    """Height and width of what the network sees, pixels."""
    batch_size: Count = 256
    """Images in a batch, on each device."""
    augmentation: Literal["random_resized_crop", "pad_crop", "none"] = "random_resized_crop"
    """What is done to training images; random_resized_crop flips them too."""
    resize: bool = True
    """Resize and centre-crop images outside training; off for images that have image_size."""
    mean: Channels = (123.675, 116.28, 103.53)
    """Mean of the three channels, on the 0 to 255 scale."""
    std: Channels = (58.395, 57.12, 57.375)
    """Standard deviation of the three channels, on the same scale."""
    workers: Count = 2
    """Parallel decoding workers."""
    sink: bool = False
    """Ascend: training batches come from MindSpore's queue on the device, filled ahead. Not run on a device yet."""
    damaged: Literal["stop", "replace"] = "stop"
    """An image that can't be decoded: stop, or replace it by another (dimred data check counts them)."""
    eval_split: Literal["val", "test"] = "val"
    """The split on which accuracy is reported."""
