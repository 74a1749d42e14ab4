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
    average over batches is taken in float64. The result does not depend on the statistics from before.

    Args:
        network: changed in place; its training mode is put back afterwards.
        batches: tuples of the inputs and, last, the labels.

    Returns:
        The number of batches used; none in a network without BatchNorm.

    Raises:
        ConfigError: there were no batches.
    """
    layers = [layer for _, layer in network.cells_and_names() if isinstance(layer, BATCH_NORMS)]
    if not layers:
        return 0
    moving = [(layer, value) for layer in layers for value in (layer.moving_mean, layer.moving_variance)]
    totals = [np.zeros(value.shape, np.float64) for _, value in moving]
    was_training = network.training
    network.set_train(True)
    n_batches = 0
    for *inputs, _ in batches:
        for _, value in moving:
            value.set_data(Tensor(np.zeros(value.shape, np.float32)))
        network(*inputs)
        for total, (layer, value) in zip(totals, moving, strict=True):
            total += value.asnumpy().astype(np.float64) / layer.momentum  # MindSpore keeps 1 - momentum there
        n_batches += 1
    network.set_train(was_training)
    if n_batches == 0:
        raise ConfigError("there are no training batches to re-estimate BatchNorm with; lower data.batch_size")
    for total, (_, value) in zip(totals, moving, strict=True):
        value.set_data(Tensor((total / n_batches).astype(np.float32), ms.float32))
    return n_batches
