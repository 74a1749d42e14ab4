"""Measure a network on the splits of its data: metric, loss, and BatchNorm statistics that belong to its weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
from mindspore import Tensor, nn

from dimred.data.batches import batches_after
from dimred.distributed.ranks import ALONE, Ranks
from dimred.evaluate.batch_norm import reestimate_batch_norm
from dimred.evaluate.scores import CLASSIFICATION, Scores, mean_of_items, means_of_samples, score_batches
from dimred.train_step.network_state import moving_statistics
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.layout import WeightLayout

Arrays = Mapping[str, np.ndarray]


class Images(Protocol):
    """One split of the data, such as ``dimred.data.image_folder.ImageFolder``."""

    n_images: int
    batch_size: int

    @property
    def at_batch(self) -> Callable[[], object]:
        """To be called for each batch."""

    def evaluation(self) -> Any:
        """Every image once, without augmentation."""

    def spare_batches(self, seed: int) -> Iterator[Any]:
        """Training micro-batches without end, in orders that no epoch uses."""


def _read(images: Images) -> Iterator[tuple[Tensor, ...]]:
    return (batch for _, batch in batches_after(images.evaluation))


_KEPT_BYTES = 1 << 28  # of the batches of one purpose


class _Kept:
    """Batches that are the same each time: where they are small they are read once, and then kept in memory.

    Args:
        read: reads them.
        at_batch: called for each that is kept; reading calls it too.
    """

    def __init__(self, read: Callable[[], Iterator[tuple[Tensor, ...]]], at_batch: Callable[[], object]):
        self._read, self._at_batch = read, at_batch
        self._batches: list[tuple[Tensor, ...]] | None = None

    def create_tuple_iterator(self, num_epochs: int = 1) -> Iterator[tuple[Tensor, ...]]:
        """As MindSpore's datasets have it."""
        if self._batches is not None:
            for batch in self._batches:
                self._at_batch()
                yield batch
            return
        batches, n_bytes = [], 0
        for batch in self._read():
            yield batch
            n_bytes += sum(tensor.nbytes for tensor in batch)
            if n_bytes <= _KEPT_BYTES:
                batches.append(batch)
        self._batches = batches if n_bytes <= _KEPT_BYTES else None


class OnSplits:
    """Measures a network as it is at the moment.

    Args:
        network: inputs -> outputs.
        images: by split; ``train`` for ``reestimate``.
        scores: what it is measured by.
        seed: of the order of the training images.
        n_batches: training batches, of all ranks each, that statistics are re-estimated on.
        ranks: all of them call the methods, each with its share of the images.

    Attributes:
        network: as given.
        has_batch_norm: whether there is anything to re-estimate.
    """

    def __init__(
        self,
        network: nn.Cell,
        images: Mapping[str, Images],
        scores: Scores = CLASSIFICATION,
        *,
        seed: int,
        n_batches: int,
        ranks: Ranks = ALONE,
    ):
        self.network = network
        self._scores, self._ranks = scores, ranks
        self._layout = WeightLayout.from_network(network)
        self._splits = {split: _Kept(partial(_read, part), part.at_batch) for split, part in images.items()}
        self._spare = _Kept(
            lambda: islice(images["train"].spare_batches(seed), n_batches), lambda: images["train"].at_batch()
        )
        self.has_batch_norm = bool(moving_statistics(network))

    def metric(self, split: str) -> float:
        """The metric's mean over the split; by default the accuracy, a fraction."""
        [found] = score_batches(self.network, self._splits[split], self._scores.metric)
        return mean_of_items(found, self._ranks)

    def losses(self, split: str) -> np.ndarray:
        """The loss on each sample of the split, float32 (n,); see ``means_of_samples``."""
        [found] = score_batches(self.network, self._splits[split], self._scores.loss)
        return means_of_samples(found, self._ranks)

    def metric_and_losses(self, split: str) -> tuple[float, np.ndarray]:
        """Both, in one pass."""
        metric, loss = score_batches(self.network, self._splits[split], self._scores.metric, self._scores.loss)
        return mean_of_items(metric, self._ranks), means_of_samples(loss, self._ranks)

    def put(self, weights: np.ndarray) -> None:
        """Set the network's trainable weights, (M,), with BatchNorm statistics that belong to them."""
        from_arrays(self.network.trainable_params(), self._layout.unflatten(weights), "an average")
        self.reestimate()

    def val_losses_of(self, weights: np.ndarray) -> np.ndarray:
        """``put``, and the losses on ``val``."""
        self.put(weights)
        return self.losses("val")

    def reestimate(self) -> int:
        """Give the network BatchNorm statistics that belong to its weights; returns how many batches that took.

        Raises:
            ConfigError: there are no training batches.
        """
        n_batches = reestimate_batch_norm(self.network, self._spare.create_tuple_iterator())
        self._ranks.all_reduce_mean(moving_statistics(self.network))
        return n_batches


@dataclass
class Cost:
    """Passes through the network.

    Attributes:
        forward: images that went forward, those of a gradient included.
        backward: images that went backward.
    """

    forward: int = 0
    backward: int = 0


_REPORTED = ("val", "test")


class Evaluator:
    """Puts weights into a network of its own and measures them.

    Choosing is counted, reporting is not: ``cost`` holds the passes of ``val_losses`` and ``reestimated``,
    which a method needs to make its choices, and not those of ``report``.

    Args:
        on: measures the network, whose weights every call changes, on the splits ``train``, ``val`` and ``test``.
        images: these splits; they say how many images a pass has.
    """

    def __init__(self, on: OnSplits, images: Mapping[str, Images]):
        self.on = on
        self._train, self._val = images["train"], images["val"]
        self.cost = Cost()

    def val_losses(self, arrays: Arrays) -> np.ndarray:
        """The loss on each sample of the split that chooses, (n,), of parameters and statistics by name."""
        self._put(arrays)
        self.cost.forward += self._val.n_images
        return self.on.losses("val")

    def reestimated(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The same weights with BatchNorm statistics re-estimated on training batches."""
        self._put(arrays)
        n_batches = self.on.reestimate()
        self.cost.forward += self._train.batch_size * (n_batches + (n_batches > 0))  # the first batch goes twice
        return to_arrays(self.on.network.get_parameters())

    def report(self, arrays: Arrays) -> dict[str, float]:
        """The metric on ``val`` and ``test``, with the statistics as they are and re-estimated; then the loss."""
        self._put(arrays)
        found = {split: self.on.metric(split) for split in _REPORTED}
        self.on.reestimate()
        again = {split: self.on.metric_and_losses(split) for split in _REPORTED}
        found |= {f"{split}_reestimated": metric for split, (metric, _) in again.items()}
        return found | {f"{split}_loss": float(losses.mean()) for split, (_, losses) in again.items()}

    def _put(self, arrays: Arrays) -> None:
        from_arrays(self.on.network.get_parameters(), arrays, "the evaluated network")
