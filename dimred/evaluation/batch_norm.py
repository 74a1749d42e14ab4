"""BatchNorm statistics for weights that were moved rather than trained.

Averaging or searching moves the weights without the forward passes that would carry the moving statistics along
(Izmailov et al., Averaging Weights Leads to Wider Optima, 2018, section 3.2).
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn

from dimred.errors import ConfigError
from dimred.train_step.network_state import batch_norms, evaluating
from dimred.vectors.parameters import put_array

_FAR = float(2**20)  # a start so far from 0 that the statistics of a batch are small beside it


def reestimate_batch_norm(network: nn.Cell, batches: Iterable[tuple[Tensor, ...]]) -> int:
    """Set every BatchNorm's moving mean and variance to the plain average over some training batches.

    For each batch the statistics start from 0, so that one forward pass leaves a known share of the batch's own; the
    average over batches is taken in float64. If a pass runs a layer n times, and each time moves the statistics by u,
    that share is 1 - (1 - u)^n; a second pass over the first batch, from another start, reveals n. The result does not
    depend on the earlier statistics. All other cells are in evaluation mode, so that nothing is dropped, as when the
    statistics are used (Li et al., Understanding the Disharmony between Dropout and Batch Normalization by Variance
    Shift, 2019). A BatchNorm that never moves its statistics (``use_batch_statistics=False``, or
    ``momentum=1``), or that no pass runs, keeps them.

    Args:
        network: changed in place; its training mode is restored afterwards.
        batches: tuples of the inputs and, last, the labels.

    Returns:
        The number of batches used; 0 for a network without BatchNorm.

    Raises:
        ConfigError: there were no batches, or the network has a BatchNorm of ``mindspore.mint``.
    """
    # MindSpore keeps 1 - momentum in ``momentum``.
    layers = [norm for norm in batch_norms(network) if norm.use_batch_statistics is not False and norm.momentum > 0]
    if not layers:
        return 0
    moving = [value for layer in layers for value in (layer.moving_mean, layer.moving_variance)]
    before = [value.asnumpy().copy() for value in moving]
    totals = [np.zeros(value.shape) for value in moving]
    shares: list[float] = []  # for each of ``moving``, the batch's share in the value after a pass
    n_batches = 0
    with evaluating(network):
        for layer in layers:
            layer.set_train(True)
        network.phase = "train_statistics"  # a graph of its own, neither that of training nor that of evaluation
        for *inputs, _ in batches:
            left = _pass_from(0.0, network, inputs, moving)
            if not shares:
                far = _pass_from(_FAR, network, inputs, moving)
                for layer, mean, far_mean in zip(layers, left[::2], far[::2], strict=True):
                    shares += [_share(layer.momentum, float(np.median(far_mean - mean)) / _FAR)] * 2
            for total, values in zip(totals, left, strict=True):
                total += values
            n_batches += 1
    if n_batches == 0:
        raise ConfigError("there are no training batches to re-estimate BatchNorm with; lower data.batch_size")
    for value, total, share, old in zip(moving, totals, shares, before, strict=True):
        put_array(value, total / n_batches / share if share else old)
    return n_batches


def _pass_from(
    start: float, network: nn.Cell, inputs: Sequence[Tensor], moving: Sequence[Parameter]
) -> list[np.ndarray]:
    """Set all statistics to ``start``, run a forward pass, and return the statistics after it."""
    for value in moving:
        put_array(value, np.full(value.shape, start))
    network(*inputs)
    return [value.asnumpy().astype(np.float64) for value in moving]


def _share(move: float, kept: float) -> float:
    """Return 1 - (1 - move)^n for the n with which (1 - move)^n is nearest to ``kept``; 0 if the layer did not run."""
    log_kept_each = math.log1p(-min(move, 1 - 1e-9))
    n_runs = round(math.log(max(kept, 1e-9)) / log_kept_each) if math.isfinite(kept) else 1
    return -math.expm1(n_runs * log_kept_each)
