"""Exponential moving average (EMA) of weights and BatchNorm statistics, kept beside the raw ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.config.parts import EmaConfig
from dimred.errors import check_type
from dimred.train_step.part import WeightsPart
from dimred.train_step.precision import half_as_float32
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.parameters import preserved

_RAMP_UPDATES = 2000.0
_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class EMA(WeightsPart):
    """A part with a moving average of weights and statistics, updated once for each applied step t = 1, 2, ...

    average <- average + (1 - d_t) (value - average)

    d_t = decay, or with the ramp decay (1 - exp(-t / 2000)), which forgets early weights sooner. (Polyak & Juditsky,
    1992; the ramp as in today's detection recipes.) 1 - decay is computed in float64; in float32, 1 - 0.9999 would have
    a relative error of 1.7e-4.

    The average spans about 1 / (1 - d_t) updates. With the ramp, that is 1.3 at t = 500, 2.7 at 2,000 and 12 at 5,000,
    so that in a run of less than some thousand updates it is almost the raw network. Use ``ramp=False`` there.
    ``in_place`` puts the average into the network, to measure or save it.

    The averages of the trainable weights and of BatchNorm's moving statistics are parameters named ``ema.<name>``, and
    the number of updates is ``ema.updates``; a checkpoint of the cell holds them all. Averages of half-precision
    weights are float32, because half precision would round away the small steps of a large decay.

    Args:
        network: the network to average; the average starts from the network's values.
        decay: the fraction of the average that an update keeps, 0 <= decay < 1.
        ramp: whether the decay ramps up.

    Attributes:
        statistics: the averages of BatchNorm's statistics, which differ between the ranks, as the statistics do.

    Raises:
        ConfigError: ``network`` is not a cell, ``decay`` is not in its range, or ``ramp`` is not true or false.
    """

    name = "ema"

    def __init__(self, network: nn.Cell, decay: float = 0.9999, ramp: bool = True):
        super().__init__(auto_prefix=False)
        check_type("network", network, nn.Cell, "a cell with trainable parameters")
        EmaConfig.check_arguments(decay=decay, ramp=ramp)
        weights, statistics = network.trainable_params(), moving_statistics(network)
        values = [*weights, *statistics]
        self.decay = float(decay)
        self.ramp = ramp
        self.values = ms.ParameterTuple(values)
        self.averages = ms.ParameterTuple(
            [
                Parameter(half_as_float32(value.value()).copy(), name=f"ema.{value.name}", requires_grad=False)
                for value in values
            ]
        )
        self.statistics = list(self.averages)[len(weights) :]
        self.n_updates = Parameter(Tensor(0, ms.int32), name="ema.updates", requires_grad=False)

    def construct(self) -> bool:
        """Update the averages once, and return True."""
        n_updates = self.n_updates + 1
        fraction = (1.0 - self.decay) * ops.ones((), ms.float32)
        if self.ramp:
            fraction = fraction + self.decay * ops.exp(n_updates.astype(ms.float32) * (-1.0 / _RAMP_UPDATES))
        moves = _each(ops.partial(_move, fraction), self.averages, self.values)
        return ops.depend(True, (moves, ops.assign(self.n_updates, n_updates)))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages into the network inside the block; then restore the network's values, byte for byte."""
        with preserved(list(self.values)):
            for average, value in zip(self.averages, self.values, strict=True):
                ops.assign(value, average.astype(value.dtype))
            yield


def _move(fraction: Tensor, average: Parameter, value: Tensor) -> Tensor:
    return ops.assign(average, average + (value - average) * fraction)
