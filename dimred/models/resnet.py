"""Make residual networks: one definition for ResNet-50 on ImageNet and for smaller networks on small images.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015 (table 1). As in the recipe this project follows
(and in most code today), a bottleneck takes its stride in the 3 x 3 convolution; parameter counts equal the paper's.
"""

from collections.abc import Sequence
from typing import Literal

from mindspore import Tensor, nn, ops

from dimred.models.initialisation import initialise

Stem = Literal["imagenet", "small"]


def _convolution(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, size, stride, pad_mode="pad", padding=size // 2, has_bias=False)


def _batch_norm(n_channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(n_channels, eps=1e-5, momentum=0.9)


class _Block(nn.Cell):
    """A residual block, relu(branch(x) + shortcut(x)), with ``expansion`` x ``width`` output channels."""

    expansion = 1

    def __init__(self, n_in: int, width: int, stride: int):
        super().__init__()
        self.branch = nn.SequentialCell(*self._layers(n_in, width, stride))
        n_out = width * self.expansion
        self.shortcut = nn.Identity()
        if stride != 1 or n_in != n_out:  # a projection, option B of the paper
            self.shortcut = nn.SequentialCell(_convolution(n_in, n_out, 1, stride), _batch_norm(n_out))
        self.relu = nn.ReLU()

    def _layers(self, n_in: int, width: int, stride: int) -> list[nn.Cell]:
        raise NotImplementedError

    def construct(self, x: Tensor) -> Tensor:
        return self.relu(self.branch(x) + self.shortcut(x))


class BasicBlock(_Block):
    """Two 3 x 3 convolutions and a shortcut (the paper's figure 5, left)."""

    def _layers(self, n_in: int, width: int, stride: int) -> list[nn.Cell]:
        first = [_convolution(n_in, width, 3, stride), _batch_norm(width), nn.ReLU()]
        return [*first, _convolution(width, width, 3), _batch_norm(width)]


class Bottleneck(_Block):
    """A 1 x 1, a 3 x 3, and a 1 x 1 convolution to four times the width, and a shortcut (figure 5, right)."""

    expansion = 4

    def _layers(self, n_in: int, width: int, stride: int) -> list[nn.Cell]:
        n_out = width * self.expansion
        first = [_convolution(n_in, width, 1), _batch_norm(width), nn.ReLU()]
        second = [_convolution(width, width, 3, stride), _batch_norm(width), nn.ReLU()]
        return [*first, *second, _convolution(width, n_out, 1), _batch_norm(n_out)]


class ResNet(nn.Cell):
    """A residual network: a stem, stages of blocks, global average pooling and a dense classifier.

    Each stage but the first halves the resolution.

    Args:
        block: ``BasicBlock`` or ``Bottleneck``.
        depths: blocks in each stage.
        widths: channels inside each stage's blocks; same length as ``depths``.
        n_classes: number of outputs.
        stem: ``imagenet`` (7 x 7, stride 2, then max pooling: 4 times smaller) or ``small`` (3 x 3, full resolution).

    Shapes:
        images (n, 3, height, width) -> logits (n, n_classes).
    """

    def __init__(self, block: type[_Block], depths: Sequence[int], widths: Sequence[int], n_classes: int, stem: Stem):
        super().__init__()
        n_in = widths[0]
        first = _convolution(3, n_in, 3) if stem == "small" else _convolution(3, n_in, 7, 2)
        pooling: list[nn.Cell] = []
        if stem == "imagenet":  # after a ReLU, padding with zeros gives the same maxima as with -inf
            pooling = [nn.Pad(((0, 0), (0, 0), (1, 1), (1, 1))), nn.MaxPool2d(kernel_size=3, stride=2)]
        self.stem = nn.SequentialCell(first, _batch_norm(n_in), nn.ReLU(), *pooling)
        blocks: list[nn.Cell] = []
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for position in range(depth):
                blocks.append(block(n_in, width, stride=2 if stage > 0 and position == 0 else 1))
                n_in = width * block.expansion
        self.blocks = nn.SequentialCell(*blocks)
        self.classifier = nn.Dense(n_in, n_classes)
        self.pool = ops.ReduceMean()

    def construct(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.blocks(self.stem(images)), (2, 3)))


# name: (block, depths, widths, stem) of ResNet
_ARCHITECTURES: dict[str, tuple[type[_Block], tuple[int, ...], tuple[int, ...], Stem]] = {
    "resnet50": (Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), "imagenet"),
    "resnet18": (BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512), "imagenet"),
    "resnet_small": (BasicBlock, (1, 1, 1), (8, 16, 32), "small"),
}


def resnet(name: str, n_classes: int, initialisation: str = "xavier_uniform") -> ResNet:
    """Make a residual network by name, with fresh initial weights that ``mindspore.set_seed`` determines.

    Args:
        name: ``resnet50`` (25.6 M weights at 1001 classes), ``resnet18``, or ``resnet_small`` (20 k, for small images).
        n_classes: number of outputs.
        initialisation: name of the convolutions' initialisation; see ``initialise``.
    """
    block, depths, widths, stem = _ARCHITECTURES[name]
    network = ResNet(block, depths, widths, n_classes, stem)
    initialise(network, initialisation)
    return network
