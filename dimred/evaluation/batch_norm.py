"""BatchNorm statistics for weights that were moved rather than trained.

Averaging or searching moves the weights without the forward passes that would update the moving statistics (Izmailov
et al., Averaging Weights Leads to Wider Optima, 2018, section 3.2).
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, check_type, shown
from dimred.train_step.modes import evaluating
from dimred.train_step.places import places
from dimred.train_step.statistics import batch_norms
from dimred.vectors.parameters import put_array

_log = logging.getLogger(__name__)

_RECORDER = "_dimred_recorder"  # attribute of a BatchNorm that keeps its recorder, so a graph is compiled only once


class _Recorder(nn.Cell):
    """A BatchNorm in training mode that records the moments of its inputs.

    ``moments``, (3, C), holds for each channel the count n, the mean, and M = sum (x - mean)^2 over all elements in all
    calls since it was set to 0. Two parts a and b are merged by the formulas of Chan, Golub and LeVeque (Updating
    Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979):

        n = n_a + n_b,   mean = mean_a + d n_b / n,   M = M_a + M_b + d^2 n_a n_b / n,   d = mean_b - mean_a
    """

    def __init__(self, layer: nn.Cell):
        super().__init__()
        self._cells["layer"] = layer  # setattr may rename its parameters
        self.moments = Parameter(Tensor(np.zeros((3, layer.num_features), np.float32)), requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        values = ops.cast(x, mstype.float32)
        axes = (0, *range(2, len(x.shape)))
        mean = values.mean(axes, keep_dims=True)
        centered = values - mean
        rest = centered.mean(axes, keep_dims=True)  # the rounding error in a mean over many elements
        mean = (mean + rest).reshape((-1,))
        m2 = ops.square(centered - rest).sum(axes)
        n = x.size // x.shape[1]
        before = self.moments
        total = before[0] + n
        delta = mean - before[1]
        after = (total, before[1] + delta * (n / total), before[2] + m2 + delta * delta * before[0] * (n / total))
        ops.assign(self.moments, ops.stack(after))
        return self.layer(x)


def reestimate_batch_norm(network: nn.Cell, batches: Iterable[tuple[Tensor, ...]], *, ranks: Ranks = ALONE) -> int:
    """Set every BatchNorm's moving mean and variance from all elements that it sees in some training batches.

        mean = sum x / n,   variance = sum (x - mean)^2 / n

    for each channel, over the n elements in all batches on all ranks; where a pass calls the layer more than once, each
    call's elements count. A batch is weighted by its number of elements, and may be a single row; the earlier
    statistics don't count. In each pass a BatchNorm normalises by the batch, as in training. All other cells are in
    evaluation mode: dropout is off, as it is when the statistics are used (Li et al., Understanding the Disharmony
    between Dropout and Batch Normalization by Variance Shift, 2019). A BatchNorm that never moves its statistics
    (``use_batch_statistics=False``, or ``momentum=1``), or that no pass calls, keeps them. A warning is logged if
    statistics are not finite.

    Args:
        network: changed in place; its training mode is restored afterwards. If a pass fails, it keeps its statistics.
        batches: tuples of the inputs and, last, the labels, as tensors or NumPy arrays.
        ranks: all of them call this, each with its own batches; if one fails, all do.

    Returns:
        The number of batches that this rank used; 0 for a network without BatchNorm.

    Raises:
        ConfigError: there were no batches, a batch is not such a tuple, or ``network`` is not a cell or has a
            ``mindspore.mint`` BatchNorm.
    """
    check_type("network", network, nn.Cell, "a cell")
    check_type("batches", batches, Iterable, "a data set or a list of tuples of the inputs and, last, the labels")
    check_type("ranks", ranks, Ranks, "the ranks of a job; leave it out for one process")
    # MindSpore keeps 1 - momentum in ``momentum``.
    layers = [norm for norm in batch_norms(network) if norm.use_batch_statistics is not False and norm.momentum > 0]
    if not layers:
        names = [parameter.name for parameter in network.get_parameters()]
        if not batch_norms(network) and any(name.endswith("moving_variance") for name in names):
            _log.warning(
                "the network has moving statistics, but no BatchNorm layer of MindSpore that would move them, so they "
                "are not re-estimated"
            )
        return 0
    n_batches, moments = ranks.run_together(lambda: _record(network, layers, batches))
    n, mean, m2 = np.concatenate(moments, axis=1)
    total = np.maximum(ranks.sum(n), 1).astype(np.float64)
    mean_of_all = ranks.sum(n / total * mean).astype(np.float64)
    variance = ranks.sum((m2 + n * (mean - mean_of_all) ** 2) / total)
    has_run = ranks.sum(n) > 0
    if not np.isfinite((mean_of_all, variance)).all():
        _log.warning("re-estimated BatchNorm statistics are not finite: a weight or an input is not, or is too large")
    first = 0
    for layer in layers:
        channels = slice(first, first + layer.num_features)
        first += layer.num_features
        if has_run[channels].all():
            put_array(layer.moving_mean, mean_of_all[channels])
            put_array(layer.moving_variance, variance[channels])
    return n_batches


def _record(
    network: nn.Cell, layers: Sequence[nn.Cell], batches: Iterable[tuple[Tensor, ...]]
) -> tuple[int, list[np.ndarray]]:
    """Run the batches; return how many there were, and each layer's moments, (3, C) float64."""
    totals = [np.zeros((3, layer.num_features)) for layer in layers]
    n_batches = 0
    with evaluating(network), _recorders_in_place(network, layers) as recorders:
        run = recorders[0] if network is layers[0] else network
        run.phase = "train_statistics"  # a separate graph, not the one for training or evaluation
        for inputs in map(_inputs_of, batches):
            for recorder in recorders:
                put_array(recorder.moments, np.zeros(recorder.moments.shape))
            run(*inputs)
            for index, recorder in enumerate(recorders):
                totals[index] = _merged(totals[index], recorder.moments.asnumpy().astype(np.float64))
            n_batches += 1
    if n_batches == 0:
        raise ConfigError("there are no training batches to re-estimate BatchNorm with; lower data.batch_size")
    return n_batches, totals


def _inputs_of(batch: Any) -> list[Any]:
    """Return a batch's inputs for the network: everything but the labels."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise ConfigError(
            f"batches has {shown(batch)}; each must be a tuple of the inputs and, last, the labels", argument="batches"
        )
    return [Tensor(value) if isinstance(value, np.ndarray) else value for value in batch[:-1]]


@contextmanager
def _recorders_in_place(network: nn.Cell, layers: Sequence[nn.Cell]) -> Iterator[list[_Recorder]]:
    """Replace the layers with recorders; afterwards put the layers back, with the statistics that they had."""
    moving = [value for layer in layers for value in (layer.moving_mean, layer.moving_variance)]
    before = [value.asnumpy().copy() for value in moving]
    recorders = {}
    for layer in layers:
        recorder = vars(layer).setdefault(_RECORDER, None) or _Recorder(layer)
        recorder.moments.name = f"{layer.moving_mean.name}.moments"
        vars(layer)[_RECORDER] = recorders[id(layer)] = recorder
        layer.set_train(True)
    replaced = [place for place in places(network) if id(place.cell) in recorders]
    try:
        for place in replaced:
            place.put(recorders[id(place.cell)])
        yield list(recorders.values())
    finally:
        for place in replaced:
            place.put(place.cell)
        for value, old in zip(moving, before, strict=True):
            put_array(value, old)


def _merged(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Merge two sets of moments, (3, C); see ``_Recorder``."""
    n = np.maximum(a[0] + b[0], 1)
    delta = b[1] - a[1]
    merged: np.ndarray = np.stack([a[0] + b[0], a[1] + delta * b[0] / n, a[2] + b[2] + delta**2 * a[0] * b[0] / n])
    return merged
