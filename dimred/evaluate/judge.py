"""Judge: accuracy of weights on the split that chooses and the split that reports, and what judging costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from mindspore import nn

from dimred.evaluate.accuracy import Accuracy
from dimred.evaluate.batch_norm import reestimate_batch_norm
from dimred.evaluate.cross_entropy import CrossEntropy
from dimred.runtime.parameters import from_arrays, to_arrays


class Images(Protocol):
    """One split of the data, such as ``dimred.data.image_folder.ImageFolder``."""

    n_images: int
    batch_size: int

    def training_epoch(self, seed: int, epoch: int) -> Any:
        """The augmented batches of one epoch."""

    def evaluation(self) -> Any:
        """Every image once, without augmentation."""


@dataclass
class Cost:
    """Passes through the network.

    Attributes:
        forward: images that went forward, those of a gradient included.
        backward: images that went backward.
    """

    forward: int = 0
    backward: int = 0


class Judge:
    """A network of its own, into which weights are put to be judged.

    Choosing is counted, reporting is not: ``cost`` holds the passes of ``val_accuracy``, ``val_loss`` and
    ``reestimated``, which a method needs to make its choices, and not those of ``verdict``.

    Args:
        network: any weights; changed by every call.
        train, val, test: the splits.
        seed: of the order of the training images that statistics are re-estimated on.
        n_batches: how many training batches that takes.
    """

    def __init__(self, network: nn.Cell, train: Images, val: Images, test: Images, *, seed: int, n_batches: int):
        self._network = network
        self._train, self._val, self._test = train, val, test
        self._seed, self._n_batches = seed, n_batches
        self._accuracy = Accuracy(network)
        self._cross_entropy = CrossEntropy(network)
        self.cost = Cost()

    def val_accuracy(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Accuracy on the split that chooses, of parameters and statistics by name."""
        self._put(arrays)
        self.cost.forward += self._val.n_images
        return self._accuracy(self._val.evaluation())

    def val_loss(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Mean cross entropy on the split that chooses."""
        self._put(arrays)
        self.cost.forward += self._val.n_images
        return self._cross_entropy(self._val.evaluation())

    def reestimated(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same weights with BatchNorm statistics re-estimated on training batches."""
        self._put(arrays)
        batches = self._train.training_epoch(self._seed, 0).create_tuple_iterator(num_epochs=1)
        self.cost.forward += self._train.batch_size * reestimate_batch_norm(
            self._network, islice(batches, self._n_batches)
        )
        return to_arrays(self._network.get_parameters())

    def verdict(self, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Accuracy on both splits, with the statistics as they are and with statistics re-estimated."""
        before = Cost(self.cost.forward, self.cost.backward)
        self._put(arrays)
        found = {"val": self._accuracy(self._val.evaluation()), "test": self._accuracy(self._test.evaluation())}
        self._put(self.reestimated(arrays))
        found["val_reestimated"] = self._accuracy(self._val.evaluation())
        found["test_reestimated"] = self._accuracy(self._test.evaluation())
        self.cost = before
        return found

    def _put(self, arrays: Mapping[str, np.ndarray]) -> None:
        from_arrays(self._network.get_parameters(), arrays, "the judged network")
