"""Top-1 accuracy."""

import mindspore as ms
from mindspore import Tensor, dataset, nn, ops


class CountCorrect(nn.Cell):
    """images, labels -> how many the network gets right, () int32."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, images: Tensor, labels: Tensor) -> Tensor:
        predicted = ops.argmax(self.network(images), 1).astype(ms.int32)
        return ops.equal(predicted, labels).astype(ms.int32).sum()


class Accuracy:
    """Share of a dataset's images that the network classifies right, in evaluation mode.

    Args:
        network: images (n, 3, height, width) -> logits (n, n_classes); its training mode is put back afterwards.
    """

    def __init__(self, network: nn.Cell):
        self._network = network
        self._count_correct = CountCorrect(network)

    def __call__(self, batches: dataset.Dataset) -> float:
        """Accuracy as a fraction, over every image of ``batches``, the uneven last batch included."""
        was_training = self._network.training
        self._count_correct.set_train(False)
        correct = total = 0
        for images, labels in batches.create_tuple_iterator(num_epochs=1):
            correct += int(self._count_correct(images, labels).asnumpy())
            total += len(labels)
        self._count_correct.set_train(was_training)
        return correct / total
