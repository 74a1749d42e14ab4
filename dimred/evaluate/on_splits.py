"""A network on the splits of its data: accuracy, loss, and BatchNorm statistics that belong to its weights."""

from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Any, Protocol

from mindspore import Tensor, nn

from dimred.distributed.ranks import ALONE, Ranks
from dimred.evaluate.accuracy import Accuracy
from dimred.evaluate.batch_norm import reestimate_batch_norm
from dimred.evaluate.cross_entropy import CrossEntropy
from dimred.train_step.network_state import moving_statistics

_LAST_ORDER = 999_999  # stage 1 and the searches count their epochs from below and above; no order is drawn twice


class Images(Protocol):
    """One split of the data, such as ``dimred.data.image_folder.ImageFolder``."""

    n_images: int
    batch_size: int

    def training_epoch(self, seed: int, epoch: int, batch_size: int | None = None) -> Any:
        """The augmented batches of one epoch."""

    def evaluation(self) -> Any:
        """Every image once, without augmentation."""


class OnSplits:
    """Measures a network as it is at the moment.

    Args:
        network: images -> logits.
        images: by split; ``train`` for ``reestimate``.
        seed: of the order of the training images.
        n_batches: training batches, of all ranks each, that statistics are re-estimated on.
        ranks: all of them call the methods, each with its share of the images.
    """

    def __init__(
        self, network: nn.Cell, images: Mapping[str, Images], *, seed: int, n_batches: int, ranks: Ranks = ALONE
    ):
        self._network = network
        self._images = images
        self._seed, self._n_batches = seed, n_batches
        self._ranks = ranks
        self._accuracy = Accuracy(network, ranks)
        self._cross_entropy = CrossEntropy(network, ranks)

    def accuracy(self, split: str) -> float:
        """Share of the split's images that are classified right."""
        return self._accuracy(self._images[split].evaluation())

    def loss(self, split: str) -> float:
        """Mean cross entropy on the split."""
        return self._cross_entropy(self._images[split].evaluation())

    def reestimate(self) -> int:
        """Give the network BatchNorm statistics that belong to its weights; how many batches that took.

        Raises:
            ConfigError: there are no training batches.
        """
        n_batches = reestimate_batch_norm(self._network, islice(self._training_batches(), self._n_batches))
        self._ranks.all_reduce_mean(moving_statistics(self._network))
        return n_batches

    def _training_batches(self) -> Iterator[tuple[Tensor, ...]]:
        """Without end, in orders that no epoch of training or of a search uses; micro-batches where there are any."""
        train = self._images["train"]
        for order in count(_LAST_ORDER, -1):
            batches = train.training_epoch(self._seed, order, train.batch_size).create_tuple_iterator(num_epochs=1)
            first = next(batches, None)
            if first is None:
                return
            yield first
            yield from batches
