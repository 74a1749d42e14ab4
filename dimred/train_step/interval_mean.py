"""The mean of the weights since the last snapshot, kept beside the weights."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import check_type
from dimred.train_step.part import WeightsPart
from dimred.train_step.precision import half_as_float32
from dimred.vectors.parameters import to_arrays

_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class IntervalMean(WeightsPart):
    """A part that keeps the mean of the trainable weights w_t after each applied step t = 1, ..., n of an interval.

    mean = w_0 + ((w_1 - w_0) + ... + (w_n - w_0)) / n

    w_0 are the weights where the interval begins: at ``begin``, and after each ``take``. The sum is of differences,
    because a float32 sum of thousands of weights would round each of them to a coarse grid, and a mean that each step
    corrects by a fraction of 1 / t would lose the late steps. (Polyak & Juditsky, 1992, over an interval.)

    The part takes two copies of the weights, and a subtraction and an addition a step. Its parameters are float32:
    ``interval_mean.first.<name>`` for w_0, ``interval_mean.sum.<name>``, and ``interval_mean.steps``, int32.

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
        self.first = self._copies(f"{self.name}.first")
        self.sums = self._copies(f"{self.name}.sum")
        self.n_steps = Parameter(Tensor(0, ms.int32), name=f"{self.name}.steps", requires_grad=False)
        self.begin()

    def construct(self) -> bool:
        """Add the weights to the sums, and return True."""
        sums = _each(_add, self.sums, self.first, self.values)
        return ops.depend(True, (sums, ops.assign(self.n_steps, self.n_steps + 1)))

    def take(self) -> dict[str, np.ndarray]:
        """Return the means by the names of their weights, in the weights' types, and begin the next interval.

        If no step of the interval was applied, the weights did not move, and are returned.
        """
        n_steps = int(self.n_steps.asnumpy())
        weights = to_arrays(self.values)
        if n_steps > 0:
            for value, first, total in zip(self.values, self.first, self.sums, strict=True):
                mean = first.asnumpy() + total.asnumpy().astype(np.float64) / n_steps
                weights[value.name] = mean.astype(weights[value.name].dtype)
        self.begin()
        return weights

    def begin(self) -> None:
        """Begin an interval with the network's weights as they are."""
        for value, first, total in zip(self.values, self.first, self.sums, strict=True):
            ops.assign(first, half_as_float32(value.value()))
            ops.assign(total, ops.zeros_like(total))
        ops.assign(self.n_steps, Tensor(0, ms.int32))


def _add(total: Parameter, first: Parameter, value: Tensor) -> Tensor:
    return ops.assign(total, total + (value - first))
