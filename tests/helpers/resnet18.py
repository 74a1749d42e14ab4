"""ResNet-18 at 10 classes and batches for it, for the benchmarks of a search step."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from dimred.models.resnet import resnet

BATCH, ROUNDS = 32, 30


def network_and_batches() -> tuple[nn.Cell, list[tuple[Tensor, Tensor]]]:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    with_loss = nn.WithLossCell(resnet("resnet18", 10), nn.CrossEntropyLoss())
    with_loss.set_train(True)
    rng = np.random.default_rng(1)
    batches = [
        (
            Tensor(rng.standard_normal((BATCH, 3, 32, 32)).astype(np.float32)),
            Tensor(rng.integers(0, 10, BATCH).astype(np.int32)),
        )
        for _ in range(ROUNDS + 2)
    ]
    return with_loss, batches


class PlainGradient(nn.Cell):
    """A cell that computes loss and gradient, as any training step must."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.gradient = ops.value_and_grad(network, None, network.trainable_params())

    def construct(self, images, labels):
        return self.gradient(images, labels)
