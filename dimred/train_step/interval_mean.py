"""The mean of the weights since the last snapshot, kept beside the weights."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import check_type
from dimred.train_step.ema import move_averages
from dimred.train_step.part import WeightsPart
from dimred.train_step.precision import half_as_float32
from dimred.vectors.parameters import to_arrays


class IntervalMean(WeightsPart):
    """A part that keeps the mean of the trainable weights w_t after each applied step t = 1, ..., n of an interval.

    mean <- w_1                        t = 1
    mean <- mean + (w_t - mean) / t    t > 1

    An interval ends with ``take``. A float32 sum over thousands of steps would round each weight to its own coarse
    grid; this mean rounds only the differences (Welford, 1962). It takes one copy of the weights, and one addition a
    step. The means are parameters named ``interval_mean.<name>``, and the number of steps is ``interval_mean.steps``;
    the cell's checkpoints hold them all. Means of half-precision weights are float32.

    Args:
        network: the network whose trainable weights to average.

    Raises:
        ConfigError: ``network`` is not a cell.
    """

    name = "interval_mean"

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        check_type("network", network, nn.Cell, "a cell with trainable parameters")
        self.values = ms.ParameterTuple(network.trainable_params())
        self.means = ms.ParameterTuple(
            [
                Parameter(half_as_float32(value.value()).copy(), name=f"{self.name}.{value.name}", requires_grad=False)
                for value in self.values
            ]
        )
        self.n_steps = Parameter(Tensor(0, ms.int32), name=f"{self.name}.steps", requires_grad=False)

    def construct(self) -> bool:
        """Take the weights into the means, and return True."""
        n_steps = self.n_steps + 1
        moves = move_averages(n_steps == 1, 1.0 / n_steps.astype(ms.float32), self.means, self.values)
        return ops.depend(True, (moves, ops.assign(self.n_steps, n_steps)))

    def take(self) -> dict[str, np.ndarray]:
        """Return the means by the names of their weights, in the weights' types, and begin the next interval.

        If no step of the interval was applied, the weights did not move, and are returned.
        """
        weights = to_arrays(self.values)
        if self.n_steps.asnumpy() > 0:
            for value, mean in zip(self.values, self.means, strict=True):
                weights[value.name] = mean.asnumpy().astype(weights[value.name].dtype)
        self.restart()
        return weights

    def restart(self) -> None:
        """Begin the next interval: the next step replaces the means."""
        ops.assign(self.n_steps, Tensor(0, ms.int32))
