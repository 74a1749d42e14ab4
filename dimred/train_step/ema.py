"""Exponential moving average (EMA) of weights and BatchNorm statistics, kept beside the raw ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import check_number, check_type
from dimred.train_step.network_state import moving_statistics
from dimred.train_step.precision import half_as_float32
from dimred.vectors.parameters import preserved

_RAMP_UPDATES = 2000.0
_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class EMA(nn.Cell):
    """A cell with a moving average of weights and statistics, updated once for each applied step t = 1, 2, ...

    average <- d_t average + (1 - d_t) value

    d_t = decay, or with the ramp decay (1 - exp(-t / 2000)), which forgets early weights sooner
    (Polyak & Juditsky, 1992, for averaging; the ramp as in today's detection recipes).

    Averages of half-precision weights are float32, which does not round away the small steps of a large decay.
    The averages of the trainable weights and of BatchNorm's moving statistics are parameters named ``ema.<name>``, and
    the number of updates is ``ema.updates``; a checkpoint of the cell holds them all.

    Args:
        network: the network to average; the average starts from the network's values.
        decay: the fraction of the average that an update keeps, 0 <= decay < 1.
        ramp: whether the decay ramps up.

    Attributes:
        statistics: the averages of BatchNorm's statistics; like the statistics, they are to be averaged over the ranks.

    Raises:
        ConfigError: ``network`` is not a cell, ``decay`` is not in its range, or ``ramp`` is not true or false.
    """

    def __init__(self, network: nn.Cell, decay: float = 0.9999, ramp: bool = True):
        super().__init__(auto_prefix=False)
        check_type("network", network, nn.Cell, "a cell with trainable parameters")
        check_number("decay", decay, at_least=0, below=1, in_float32=True, usual="0.999 is usual")
        check_type("ramp", ramp, bool, "True or False")
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
        keep = self.decay * ops.ones((), ms.float32)
        if self.ramp:
            keep = self.decay * (1.0 - ops.exp(n_updates.astype(ms.float32) * (-1.0 / _RAMP_UPDATES)))
        moves = _each(ops.partial(_move, keep), self.averages, self.values)
        return ops.depend(True, (moves, ops.assign(self.n_updates, n_updates)))

    def restart(self) -> None:
        """Start over from the network's current values."""
        for average, value in zip(self.averages, self.values, strict=True):
            ops.assign(average, half_as_float32(value.value()))
        ops.assign(self.n_updates, Tensor(0, ms.int32))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages into the network inside the block; then restore the network's values, byte for byte."""
        with preserved(list(self.values)):
            for average, value in zip(self.averages, self.values, strict=True):
                ops.assign(value, average.astype(value.dtype))
            yield


def _move(keep: Tensor, average: Parameter, value: Tensor) -> Tensor:
    return ops.assign(average, average * keep + value * (1.0 - keep))
