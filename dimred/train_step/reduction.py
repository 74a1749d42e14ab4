"""What one process found becomes what all ranks found together."""

from mindspore import Tensor, nn


class KeepLocal(nn.Cell):
    """One process: its own values are the means over all ranks.

    The seam for data parallelism. Whatever stands in its place takes float32 tensors, the means over this rank's rows,
    and returns the tuple of their means over all ranks, the same on each rank. ``TrainStep`` calls it in its graph on
    the gradients (after accumulation, before the check for overflow, so that all ranks decide alike);
    ``SubspaceTrainStep`` calls it from the host on the mean loss and the gradient vector, and on each trial's loss.
    """

    def construct(self, *values: Tensor) -> tuple[Tensor, ...]:
        return values
