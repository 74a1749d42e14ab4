"""Residual networks: one definition for ResNet-50 on ImageNet and for the small ones on small images.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015 (table 1). As in the recipe this project follows
(and in most code today), a bottleneck takes its stride in the 3 x 3 convolution; the parameter count is the paper's.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from mindspore import Tensor, nn, ops

from dimred.errors import ConfigError
from dimred.models.initialise import initialise


def _convolution(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, size, stride, pad_mode="pad", padding=size // 2, has_bias=False)


def _batch_norm(n_channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(n_channels, eps=1e-5, momentum=0.9)


def _shortcut(n_in: int, n_out: int, stride: int) -> nn.Cell:
    """The identity where shapes allow it, else a strided 1 x 1 projection (option B of the paper)."""
    if stride == 1 and n_in == n_out:
        return nn.Identity()
    return nn.SequentialCell(_convolution(n_in, n_out, 1, stride), _batch_norm(n_out))


class BasicBlock(nn.Cell):
    """Two 3 x 3 convolutions around a shortcut (the paper's figure 5, left)."""

    expansion = 1

    def __init__(self, n_in: int, width: int, stride: int):
        super().__init__()
        self.branch = nn.SequentialCell(
            _convolution(n_in, width, 3, stride),
            _batch_norm(width),
            nn.ReLU(),
            _convolution(width, width, 3),
            _batch_norm(width),
        )
        self.shortcut = _shortcut(n_in, width, stride)
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.relu(self.branch(x) + self.shortcut(x))


class Bottleneck(nn.Cell):
    """1 x 1 down, 3 x 3, 1 x 1 up by four, around a shortcut (the paper's figure 5, right)."""

    expansion = 4

    def __init__(self, n_in: int, width: int, stride: int):
        super().__init__()
        n_out = width * self.expansion
        self.branch = nn.SequentialCell(
            _convolution(n_in, width, 1),
            _batch_norm(width),
            nn.ReLU(),
            _convolution(width, width, 3, stride),
            _batch_norm(width),
            nn.ReLU(),
            _convolution(width, n_out, 1),
            _batch_norm(n_out),
        )
        self.shortcut = _shortcut(n_in, n_out, stride)
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.relu(self.branch(x) + self.shortcut(x))


class ResNet(nn.Cell):
    """A stem, stages of residual blocks that halve the resolution, global average pooling, a dense classifier.

    Args:
        block: ``BasicBlock`` or ``Bottleneck``.
        depths: blocks in each stage.
        widths: channels inside each stage's blocks; same length as ``depths``.
        n_classes: outputs.
        stem: ``imagenet`` (7 x 7, stride 2, then max pooling: 4 times smaller) or ``small`` (3 x 3, full resolution).

    Shapes:
        images (n, 3, height, width) -> logits (n, n_classes).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        n_classes: int,
        stem: Literal["imagenet", "small"],
    ):
        super().__init__()
        n_stem = widths[0]
        if stem == "imagenet":
            self.stem = nn.SequentialCell(
                _convolution(3, n_stem, 7, 2),
                _batch_norm(n_stem),
                nn.ReLU(),
                nn.Pad(((0, 0), (0, 0), (1, 1), (1, 1))),  # after a ReLU, zeros pad a maximum as well as -inf
                nn.MaxPool2d(kernel_size=3, stride=2),
            )
        else:
            self.stem = nn.SequentialCell(_convolution(3, n_stem, 3), _batch_norm(n_stem), nn.ReLU())
        blocks: list[nn.Cell] = []
        n_in = n_stem
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(n_in, width, stride))
                n_in = width * block.expansion
        self.blocks = nn.SequentialCell(*blocks)
        self.classifier = nn.Dense(n_in, n_classes)
        self.pool = ops.ReduceMean(keep_dims=False)

    def construct(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.blocks(self.stem(images)), (2, 3)))


class _Architecture(NamedTuple):
    block: type[BasicBlock] | type[Bottleneck]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stem: Literal["imagenet", "small"]


_ARCHITECTURES = {
    "resnet50": _Architecture(Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), "imagenet"),
    "resnet18": _Architecture(BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512), "imagenet"),
    "resnet_small": _Architecture(BasicBlock, (1, 1, 1), (8, 16, 32), "small"),
}
MODEL_NAMES = tuple(_ARCHITECTURES)


def resnet(name: str, n_classes: int, initialisation: str = "xavier_uniform") -> ResNet:
    """A residual network by name, with fresh initial weights drawn from ``mindspore.set_seed``.

    Args:
        name: ``resnet50`` (25.6 M weights at 1001 classes), ``resnet18``, or ``resnet_small`` (20 k, for small images).
        n_classes: outputs; at least 2.
        initialisation: of the convolutions, see ``dimred.models.initialise``.

    Raises:
        ConfigError: an unknown name, or fewer than 2 classes.
    """
    if name not in _ARCHITECTURES:
        raise ConfigError(f"model name is {name!r}; allowed: {', '.join(MODEL_NAMES)}")
    if n_classes < 2:
        raise ConfigError(f"n_classes is {n_classes}; a classifier needs at least 2")
    chosen = _ARCHITECTURES[name]
    network = ResNet(chosen.block, chosen.depths, chosen.widths, n_classes, chosen.stem)
    initialise(network, initialisation)
    return network
