"""Measure a network on the splits of its data: metric, loss, and BatchNorm statistics that belong to its weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from dimred.checkpoints.layout import WeightLayout
from dimred.data.batches import Batches, read_batches
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import DataError
from dimred.evaluation.batch_norm import reestimate_batch_norm
from dimred.evaluation.measures import CLASSIFICATION, MeansOfSamples, Measure, Scores, measure_batches
from dimred.evaluation.predictions import Predict, Predictions
from dimred.evaluation.scores import copies
from dimred.run_files.metric import Measurement
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.parameters import from_arrays

_CACHE_BYTES = 1 << 28  # the most memory that one cache of batches may take


@dataclass(eq=False)
class _BatchCache:
    """Batches that are the same each time; small ones are read once and kept in memory."""

    read: Callable[[], Iterator[tuple[Tensor, ...]]]
    at_batch: Callable[[], object]
    _batches: list[tuple[Tensor, ...]] | None = field(default=None, init=False)

    def create_tuple_iterator(self, num_epochs: int = 1) -> Iterator[tuple[Tensor, ...]]:
        """Yield copies of the batches, as MindSpore datasets do."""
        batches = []
        n_bytes = 0
        for batch in self.read() if self._batches is None else self._batches:
            self.at_batch()
            yield copies(batch)
            n_bytes += sum(tensor.nbytes for tensor in batch)
            if n_bytes <= _CACHE_BYTES:
                batches.append(batch)
        self._batches = batches if n_bytes <= _CACHE_BYTES else None


class Evaluator:
    """Measures a network with its current weights on the splits of its data.

    Args:
        network: maps inputs to outputs.
        images: the splits by name; ``reestimate`` needs ``train``.
        scores: loss and metrics to measure by.
        seed: determines the order of the training images.
        n_batches: how many training batches each rank reads to re-estimate BatchNorm's statistics.
        ranks: all of them call the methods, each with its share of the images; a method that fails on one fails on all.
        at_batch: called for each batch in a pass, as a sign of life.

    Attributes:
        network: the network as given.
        layout: the layout of its trainable weights.
        has_batch_norm: whether there is anything to re-estimate.
    """

    def __init__(
        self,
        network: nn.Cell,
        images: Mapping[str, Batches],
        scores: Scores = CLASSIFICATION,
        *,
        seed: int,
        n_batches: int,
        ranks: Ranks = ALONE,
        at_batch: Callable[[], object] = lambda: None,
    ):
        self.network = network
        self._scores = scores
        self._ranks = ranks
        self._images = images
        self._n_batches = n_batches
        self.layout = WeightLayout.from_network(network)
        self._splits = {
            split: _BatchCache(partial(read_batches, part.evaluation), at_batch) for split, part in images.items()
        }
        self._spare = _BatchCache(lambda: islice(images["train"].spare_batches(seed), n_batches), at_batch)
        self.has_batch_norm = bool(moving_statistics(network))

    @property
    def passes_each(self) -> float:
        """Return the cost of measuring weights on ``val``, BatchNorm included, in passes over the training split."""
        samples = self._images["val"].n_images
        if self.has_batch_norm:
            samples += self._n_batches * self._images["train"].batch_size * self._ranks.group_size
        return samples / self._images["train"].n_images

    def metrics(self, split: str) -> list[float]:
        """Measure each metric on the split, the main one first.

        Raises:
            DataError: a batch can't be read, a label is not a class of the network, or samples are gone.
            ConfigError: a metric did not give one value for each item, or one number for the whole split.
        """
        return self._measure(split, *self._scores.metrics)

    def losses_and_metrics(self, split: str) -> tuple[np.ndarray, list[float]]:
        """Measure loss and metrics on the split in one pass.

        Returns:
            Each sample's loss, float32 (n,) (see ``means_of_samples``); and each metric, the main one first.

        Raises:
            DataError, ConfigError: as for ``metrics``.
        """
        losses, *metrics = self._measure(split, MeansOfSamples(self._scores.loss), *self._scores.metrics)
        return losses, metrics

    def metrics_and_predictions(self, split: str) -> tuple[list[float], Predictions]:
        """Measure each metric, and predict the class of each sample, in one pass; the network is a classifier.

        Raises:
            DataError: as for ``metrics``, or the labels are not classes that the network outputs.
            ConfigError: as for ``metrics``.
        """
        predictions, *metrics = self._measure(split, Predict(), *self._scores.metrics)
        return metrics, predictions

    def put(self, weights: np.ndarray) -> None:
        """Set the network's trainable weights, (M,), and re-estimate its BatchNorm statistics for them.

        Raises:
            ConfigError: as for ``reestimate``.
        """
        from_arrays(self.network.trainable_params(), self.layout.unflatten(weights), "an average")
        self.reestimate()

    def measure_val(self) -> Measurement:
        """Measure the losses and the main metric on ``val`` in one pass."""
        losses, metrics = self.losses_and_metrics("val")
        return Measurement(losses, metrics[0])

    def measure_val_of(self, weights: np.ndarray) -> Measurement:
        """Set the weights with ``put``, and measure loss and metric on ``val``."""
        self.put(weights)
        return self.measure_val()

    def reestimate(self) -> int:
        """Re-estimate the network's BatchNorm statistics, and return how many batches this took.

        Raises:
            ConfigError: there are no training batches.
        """
        return reestimate_batch_norm(self.network, self._spare.create_tuple_iterator(), ranks=self._ranks)

    def _measure(self, split: str, *measures: Measure[Any]) -> list[Any]:
        ranks = self._ranks

        def name_of(row: int) -> str:
            return f"sample {self._images[split].evaluated_numbers()[row]} of the split {split!r}"

        def read() -> list[list[Any]]:
            kept, n_read = measure_batches(self.network, self._splits[split], measures, name_of=name_of)
            n_there = len(range(ranks.rank, self._images[split].n_images, ranks.group_size))
            if n_read != n_there:
                raise DataError(
                    f"{split!r} gave {n_read} samples to rank {ranks.rank}, but had {n_there} for it when the run "
                    "began: the data have changed since"
                )
            return kept

        kept = ranks.run_together(read)
        return [measure.of_split(of_one, ranks) for measure, of_one in zip(measures, kept, strict=True)]
