"""A mean over every image of a split, in evaluation mode."""

from mindspore import dataset, nn

from dimred.distributed.ranks import ALONE, Ranks


class MeanOverImages:
    """Mean of a number that a cell gives for each image.

    Args:
        network: images (n, 3, height, width) -> logits (n, n_classes); its training mode is put back afterwards.
        sum_over_batch: around the network; images, labels -> the sum over the batch's images, a scalar.
        ranks: each is called with its own share of the images; sums and counts are added up, so the shares may differ.
    """

    def __init__(self, network: nn.Cell, sum_over_batch: nn.Cell, ranks: Ranks = ALONE):
        self._network = network
        self._sum_over_batch = sum_over_batch
        self._ranks = ranks

    def __call__(self, batches: dataset.Dataset) -> float:
        """The mean over every image of ``batches``, the uneven last batch included."""
        was_training = self._network.training
        self._sum_over_batch.set_train(False)
        total, n_images = 0.0, 0
        for images, labels in batches.create_tuple_iterator(num_epochs=1):
            total += float(self._sum_over_batch(images, labels).asnumpy())
            n_images += len(labels)
        self._sum_over_batch.set_train(was_training)
        in_all, n_in_all = self._ranks.sum([total, n_images])
        return float(in_all) / float(n_in_all)
