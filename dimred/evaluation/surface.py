"""Evaluate the loss at points of a plane of weight space."""

from collections.abc import Callable, Sequence

import numpy as np
from mindspore import Tensor, nn

from dimred.checkpoints.layout import WeightLayout
from dimred.train_step.network_state import batch_norms
from dimred.vectors.parameters import from_arrays

Batches = Sequence[tuple[Tensor, ...]]


def loss_in_plane(
    loss: nn.Cell, batches: Batches, origin: np.ndarray, directions: np.ndarray
) -> Callable[[float, float], float]:
    """Make the function (x, y) -> mean loss over the batches at origin + x directions[0] + y directions[1].

    BatchNorm uses each batch's own statistics, so that the loss depends on the weights alone; everything else is in
    evaluation mode. Every call changes the network's weights and statistics.

    Args:
        loss: inputs of a batch -> scalar mean loss.
        batches: the same in every call.
        origin: (M,).
        directions: (2, M).
    """
    layout = WeightLayout.from_network(loss)
    parameters = loss.trainable_params()
    loss.set_train(False)
    for norm in batch_norms(loss):
        norm.set_train(True)

    def at(x: float, y: float) -> float:
        weights = (origin + x * directions[0] + y * directions[1]).astype(np.float32)
        from_arrays(parameters, layout.unflatten(weights), "the plane")
        return float(np.mean([float(loss(*batch).asnumpy()) for batch in batches]))

    return at
