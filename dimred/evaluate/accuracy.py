"""Top-1 accuracy."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from dimred.distributed.ranks import ALONE, Ranks
from dimred.evaluate.over_images import MeanOverImages


class Accuracy(MeanOverImages):
    """Share of a dataset's images that the network classifies right, as a fraction; see ``MeanOverImages``."""

    def __init__(self, network: nn.Cell, ranks: Ranks = ALONE):
        super().__init__(network, CountCorrect(network), ranks)


class CountCorrect(nn.Cell):
    """images, labels -> how many the network gets right, () int32."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, images: Tensor, labels: Tensor) -> Tensor:
        predicted = ops.argmax(self.network(images), 1).astype(ms.int32)
        return ops.equal(predicted, labels).astype(ms.int32).sum()
