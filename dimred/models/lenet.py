"""LeNet as in MindSpore's tutorials: with ReLU and max pooling.

LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998 (figure 2).
"""

from mindspore import Tensor, nn

from dimred.models.initialisation import initialise


class LeNet(nn.Cell):
    """Two convolutions with pooling, and three dense layers: 61,706 weights for 10 classes.

    Args:
        n_classes: number of outputs.

    Shapes:
        images (n, 1, 32, 32) -> logits (n, n_classes).
    """

    def __init__(self, n_classes: int):
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(1, 6, 5, pad_mode="valid", has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
        )
        self.classifier = nn.SequentialCell(
            nn.Flatten(),
            nn.Dense(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Dense(120, 84),
            nn.ReLU(),
            nn.Dense(84, n_classes),
        )

    def construct(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def lenet(n_classes: int, initialisation: str = "xavier_uniform") -> LeNet:
    """Make LeNet with fresh initial weights that ``mindspore.set_seed`` determines.

    Args:
        n_classes: number of outputs.
        initialisation: name of the convolutions' initialisation; see ``initialise``.
    """
    network = LeNet(n_classes)
    initialise(network, initialisation, dense="xavier_uniform")
    return network
