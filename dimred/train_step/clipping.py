"""Gradient clipping by global norm."""

import math
from typing import ClassVar

from mindspore import Tensor, ops

from dimred.config.parts import ClippingConfig
from dimred.train_step.part import GradientPart
from dimred.train_step.precision import half_as_float32

_ORDINARY = 2.0**48  # if the largest entry is between 1 / _ORDINARY and _ORDINARY, the squares fit into float32
_SCALE = 2.0**96
_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class Clipping(GradientPart):
    """A part that clips the gradient: g <- g min(1, norm / |g|), with |g| over all parameters together.

    (Pascanu et al., On the difficulty of training recurrent neural networks, 2013, algorithm 1.
    ``ops.clip_by_global_norm`` does the same without returning the norm.)

    If max |g_i| is very large or very small, g is divided by a power of two before it is squared, as in LAPACK's
    ``nrm2`` (Blue, A portable Fortran program to find the Euclidean norm of a vector, 1978). So a gradient whose
    squares overflow float32 is clipped too.

    If an entry is not finite, the gradient has no direction: the norm is not finite, and *all* clipped entries are NaN.
    A loss scale checks the gradient before it is clipped, and drops such a step. Without a loss scale every weight
    becomes NaN, and the next loss shows it. No part of such a gradient is ever applied silently.

    Args:
        norm: largest global norm, above 0.

    Inputs:
        gradients: a tuple of tensors, float32 or half precision.

    Outputs:
        the clipped gradients, in their types, and the telemetry: the global norm before clipping, () float32.

    Raises:
        ConfigError: ``norm`` is not above 0, or not finite.
    """

    name = "clipping"
    telemetry: ClassVar[tuple[str, ...]] = ("grad_norm",)

    def __init__(self, norm: float):
        super().__init__(auto_prefix=False)
        ClippingConfig.check_arguments(norm=norm)
        self.norm = float(norm)

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        wide = _each(half_as_float32, gradients)
        largest = ops.stack(_each(_largest, wide)).max()
        power = ops.select(largest < 1.0 / _ORDINARY, ops.full_like(largest, 1.0 / _SCALE), ops.ones_like(largest))
        power = ops.select(largest > _ORDINARY, ops.full_like(largest, _SCALE), power)
        quotients = _each(ops.partial(_divide, power), wide)
        quotient_length = ops.sqrt(ops.addn(_each(_square, quotients)))
        length = quotient_length * power
        shrink = ops.select(ops.isfinite(quotient_length), self.norm / quotient_length, ops.full_like(length, math.nan))
        factor = ops.select(length <= self.norm, power, shrink)
        return _each(ops.partial(_multiply, factor), quotients, gradients), (length,)


def _largest(gradient: Tensor) -> Tensor:
    return gradient.abs().max()


def _divide(power: Tensor, gradient: Tensor) -> Tensor:
    return gradient / power


def _multiply(factor: Tensor, quotient: Tensor, gradient: Tensor) -> Tensor:
    return (quotient * factor).astype(gradient.dtype)


def _square(gradient: Tensor) -> Tensor:
    return ops.reduce_sum(gradient * gradient)
