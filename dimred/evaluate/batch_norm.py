"""BatchNorm statistics for weights that were moved rather than trained.

Averaging or searching moves the weights without the forward passes that would carry the moving statistics along
(Izmailov et al., Averaging Weights Leads to Wider Optima, 2018, section 3.2).
"""

from collections.abc import Iterable

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from dimred.errors import ConfigError
from dimred.train_step.network_state import BATCH_NORMS


def reestimate_batch_norm(network: nn.Cell, batches: Iterable[tuple[Tensor, ...]]) -> int:
    """Set every BatchNorm's moving mean and variance to the plain average over some training batches.

    For each batch the statistics start from 0, so that one forward pass leaves a known share of the batch's own; the
    average over batches is taken in float64. The result does not depend on the statistics from before. Dropout and
    every other layer are as they are outside training, because the statistics are used there (Li et al., Understanding
    the Disharmony between Dropout and Batch Normalization by Variance Shift, 2019). A BatchNorm that never moves its
    statistics (``use_batch_statistics=False``, or ``momentum=1``) keeps them.

    Args:
        network: changed in place; its training mode is put back afterwards.
        batches: tuples of the inputs and, last, the labels.

    Returns:
        The number of batches used; none in a network without BatchNorm.

    Raises:
        ConfigError: there were no batches.
    """
    cells = [cell for _, cell in network.cells_and_names()]
    # MindSpore keeps 1 - momentum in ``momentum``.
    layers = [
        cell
        for cell in cells
        if isinstance(cell, BATCH_NORMS) and cell.use_batch_statistics is not False and cell.momentum > 0
    ]
    if not layers:
        return 0
    moving = [(layer, value) for layer in layers for value in (layer.moving_mean, layer.moving_variance)]
    totals = [np.zeros(value.shape, np.float64) for _, value in moving]
    was_training = network.training
    network.set_train(True)
    for cell in cells:
        if cell not in layers and not cell.name_cells():
            cell.set_train(False)
    network.phase = "train_statistics"  # a graph of its own: one that was compiled in training has dropout in it
    n_batches = 0
    try:
        for *inputs, _ in batches:
            for _, value in moving:
                value.set_data(Tensor(np.zeros(value.shape, np.float32)))
            network(*inputs)
            for total, (layer, value) in zip(totals, moving, strict=True):
                total += value.asnumpy().astype(np.float64) / layer.momentum
            n_batches += 1
    finally:
        network.set_train(was_training)
    if n_batches == 0:
        raise ConfigError("there are no training batches to re-estimate BatchNorm with; lower data.batch_size")
    for total, (_, value) in zip(totals, moving, strict=True):
        value.set_data(Tensor((total / n_batches).astype(np.float32), ms.float32))
    return n_batches
