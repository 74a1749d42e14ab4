"""An exponential moving average (EMA) of weights and BatchNorm statistics, kept beside the raw values."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.config.parts import EmaConfig
from dimred.errors import ConfigError, check_type
from dimred.train_step.part import WeightsPart
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.parameters import preserved

_USUAL_DECAY = 0.9999
_RAMP_UPDATES = 2000.0
_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class EMA(WeightsPart):
    """A part that keeps a moving average of weights and statistics, updated after each applied step t = 1, 2, ...

    average <- value                                      t = 1
    average <- average + (1 - d_t) (value - average)      t > 1

    d_t = decay; with the ramp it is decay (1 - exp(-t / 2000)), which forgets early weights sooner. (Polyak &
    Juditsky, 1992; the ramp as in today's detection recipes.) 1 - decay is computed in float64; in float32, 1 - 0.9999
    would have a relative error of 1.7e-4. The first update copies, because weights may be loaded after this object is
    made.

    With ``half_life`` h, d_t = 2^(-1 / (h t)), so the newest h t of t updates have about half of the weight. The
    average then needs no horizon: it covers the same fraction of a short run and a long one. (As in torchtitan, with
    5 %; Meterez et al., 2026, arXiv 2602.03702.)

    The average spans about 1 / (1 - d_t) updates. With the ramp, that is 1.3 at t = 500, 2.7 at 2,000 and 12 at 5,000,
    so in a run of fewer than a few thousand updates it is almost the raw network. Use ``ramp=False`` there.
    ``in_place`` puts the average into the network, to measure or save it.

    The averages of the trainable weights and BatchNorm's moving statistics are parameters named ``ema.<name>``, and
    the number of updates is ``ema.updates``; the cell's checkpoints hold them all. Averages of half-precision weights
    are float32, because half precision would round away the small steps that a large decay makes.

    Args:
        network: the network to average.
        decay: the fraction of the average that each update keeps, 0 <= decay < 1; 0.9999 by default.
        ramp: whether the decay ramps up.
        half_life: h, in place of ``decay``, 0 < h < 1, or a text such as 5%.

    Attributes:
        statistics: the averages of BatchNorm's statistics; like the statistics, they differ between ranks.

    Raises:
        ConfigError: ``network`` is not a cell, ``decay`` or ``half_life`` is not in its range, both are given, or
            ``ramp`` is not true or false.
    """

    name = "ema"

    def __init__(
        self,
        network: nn.Cell,
        decay: float = _USUAL_DECAY,
        ramp: bool = True,
        half_life: float | str | None = None,
    ):
        super().__init__(auto_prefix=False)
        check_type("network", network, nn.Cell, "a cell with trainable parameters")
        self.fraction = _OfDecay(decay, ramp) if half_life is None else _OfHalfLife(half_life, decay)
        weights = network.trainable_params()
        statistics = moving_statistics(network)
        self.values = ms.ParameterTuple([*weights, *statistics])
        self.averages = self._copies("ema")
        self.statistics = list(self.averages)[len(weights) :]
        self.n_updates = Parameter(Tensor(0, ms.int32), name="ema.updates", requires_grad=False)

    def construct(self) -> bool:
        """Update the averages once, and return True."""
        n_updates = self.n_updates + 1
        fraction = self.fraction(n_updates.astype(ms.float32))
        moves = _each(ops.partial(_move, n_updates == 1, fraction), self.averages, self.values)
        return ops.depend(True, (moves, ops.assign(self.n_updates, n_updates)))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages into the network inside the block; then restore the network's values, byte for byte.

        Before the first update, the network keeps its own values.
        """
        with preserved(list(self.values)):
            if self.n_updates.asnumpy() > 0:
                for average, value in zip(self.averages, self.values, strict=True):
                    ops.assign(value, average.astype(value.dtype))
            yield


class _OfDecay(nn.Cell):
    """A cell that maps the update number t, () float32, to 1 - d_t for a decay, () float32."""

    def __init__(self, decay: float, ramp: bool):
        super().__init__(auto_prefix=False)
        EmaConfig.check_arguments(decay=decay, ramp=ramp)
        self.decay = float(decay)
        self.ramp = ramp

    def construct(self, number: Tensor) -> Tensor:
        fraction = (1.0 - self.decay) * ops.ones((), ms.float32)
        if self.ramp:
            fraction = fraction + self.decay * ops.exp(number * (-1.0 / _RAMP_UPDATES))
        return fraction


class _OfHalfLife(nn.Cell):
    """A cell that maps the update number t, () float32, to 1 - d_t for a half-life, () float32.

    With x = ln 2 / (h t), 1 - d_t = 1 - exp(-x) = 2 tanh(x / 2) / (1 + tanh(x / 2)). This keeps all digits of a small
    x; MindSpore's expm1 does not.
    """

    def __init__(self, half_life: float | str, decay: float):
        super().__init__(auto_prefix=False)
        if decay != _USUAL_DECAY:
            raise ConfigError(
                f"half_life is {half_life!r}, and decay is {decay!r}; give one of them", argument="half_life"
            )
        EmaConfig.check_arguments(half_life=half_life)
        fraction = cast(float, EmaConfig.checked({"half_life": half_life}).half_life)  # a text becomes a number
        self.half_rate = math.log(2.0) / fraction / 2

    def construct(self, number: Tensor) -> Tensor:
        tanh = ops.tanh(self.half_rate / number)
        return 2 * tanh / (1 + tanh)


def _move(is_first: Tensor, fraction: Tensor, average: Parameter, value: Tensor) -> Tensor:
    before = ops.select(is_first, value.astype(average.dtype), average)
    return ops.assign(average, before + (value - before) * fraction)
