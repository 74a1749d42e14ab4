"""Evaluator: accuracy of weights on the split that chooses and the split that reports, and what judging costs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from mindspore import nn

from dimred.evaluate.on_splits import Images, OnSplits
from dimred.vectors.parameters import from_arrays, to_arrays


@dataclass
class Cost:
    """Passes through the network.

    Attributes:
        forward: images that went forward, those of a gradient included.
        backward: images that went backward.
    """

    forward: int = 0
    backward: int = 0


class Evaluator:
    """A network of its own, into which weights are put to be judged.

    Choosing is counted, reporting is not: ``cost`` holds the passes of ``val_accuracy``, ``val_loss`` and
    ``reestimated``, which a method needs to make its choices, and not those of ``report``.

    Args:
        network: any weights; changed by every call.
        train, val, test: the splits.
        seed: of the order of the training images that statistics are re-estimated on.
        n_batches: how many training batches that takes.
    """

    def __init__(self, network: nn.Cell, train: Images, val: Images, test: Images, *, seed: int, n_batches: int):
        self._network = network
        self._train, self._val = train, val
        self._on = OnSplits(network, {"train": train, "val": val, "test": test}, seed=seed, n_batches=n_batches)
        self.cost = Cost()

    def val_accuracy(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Accuracy on the split that chooses, of parameters and statistics by name."""
        self._put(arrays)
        self.cost.forward += self._val.n_images
        return self._on.accuracy("val")

    def val_loss(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Mean cross entropy on the split that chooses."""
        self._put(arrays)
        self.cost.forward += self._val.n_images
        return self._on.loss("val")

    def reestimated(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same weights with BatchNorm statistics re-estimated on training batches."""
        self._put(arrays)
        self.cost.forward += self._train.batch_size * self._on.reestimate()
        return to_arrays(self._network.get_parameters())

    def report(self, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Accuracy on both splits, with the statistics as they are and with statistics re-estimated."""
        self._put(arrays)
        found = {split: self._on.accuracy(split) for split in ("val", "test")}
        self._on.reestimate()
        return found | {f"{split}_reestimated": self._on.accuracy(split) for split in ("val", "test")}

    def _put(self, arrays: Mapping[str, np.ndarray]) -> None:
        from_arrays(self._network.get_parameters(), arrays, "the judged network")
