"""Mean cross entropy: what chooses between networks that are nearly equal."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from dimred.distributed.ranks import ALONE, Ranks
from dimred.evaluate.over_images import MeanOverImages


class CrossEntropy(MeanOverImages):
    """Mean of -log p(label), without label smoothing; see ``MeanOverImages``.

    On a small held-out split it tells two networks apart that accuracy can't: an image counts by how sure the network
    was, not only by whether it crossed a border.
    """

    def __init__(self, network: nn.Cell, ranks: Ranks = ALONE):
        super().__init__(network, _SumCrossEntropy(network), ranks)


class _SumCrossEntropy(nn.Cell):
    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, images: Tensor, labels: Tensor) -> Tensor:
        logits = self.network(images).astype(ms.float32)
        return ops.cross_entropy(logits, labels.astype(ms.int32), reduction="sum")
