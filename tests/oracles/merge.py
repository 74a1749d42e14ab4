"""Merging written plainly: one float64 loop, rounding by whole numbers, and the papers' own recursions."""

from collections.abc import Sequence

import numpy as np


def weighted_mean(arrays: Sequence[np.ndarray], coefficients: Sequence[float]) -> np.ndarray:
    """Return sum_i c_i x_i / sum_i c_i of arrays x_i with coefficients c_i, in float64, summed in order."""
    total = np.zeros(arrays[0].shape)
    for array, coefficient in zip(arrays, coefficients, strict=True):
        total = total + coefficient * array.astype(np.float64)
    return total / sum(coefficients)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the bits of the bfloat16 nearest to each float64, ties to the even one.

    v = m 2^e with 1/2 <= m < 1 has bfloat16 neighbours that are 2^(e - 8) apart, and 2^-133 where these are subnormal.
    Divided by a power of two, v is rounded to a whole number by NumPy, ties to even, without an error before.
    """
    values = np.asarray(values, np.float64)
    spacing = np.maximum(np.frexp(values)[1] - 8, -133)
    with np.errstate(over="ignore"):
        nearest = np.ldexp(np.rint(np.ldexp(values, -spacing)), spacing).astype(np.float32)
    return (nearest.view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(bits: int) -> float:
    return float(np.array(bits << 16, np.uint32).view(np.float32))


def power_function_average(values: np.ndarray, steps: Sequence[int], exponent: float) -> np.ndarray:
    """Return EDM2's average (Karras et al., 2024, eq. 127): a <- b a + (1 - b) x, b = (1 - dt / t)^(g + 1).

    Args:
        values: the values x in order of time, (n, M).
        steps: the times t; dt is the time since the value before.
        exponent: g.
    """
    average = np.zeros(values.shape[1])
    before = 0
    for value, step in zip(values, steps, strict=True):
        beta = (1 - (step - before) / step) ** (exponent + 1)
        average = beta * average + (1 - beta) * value
        before = step
    return average


def power_function_width(exponent: float) -> float:
    """Return the standard deviation of the density (g + 1) t^g on [0, 1], g the exponent, by numerical integration."""
    times = (np.arange(1_000_000) + 0.5) / 1_000_000
    density = (exponent + 1) * times**exponent / len(times)
    mean = float(np.sum(times * density))
    return float(np.sqrt(np.sum((times - mean) ** 2 * density)))


def decayed(values: np.ndarray, factors: Sequence[float]) -> np.ndarray:
    """Return x_0 + sum_i w_i (x_i - x_(i-1)), in which the decay w_i scales each update (WSM: Tian et al., 2025)."""
    result = values[0].astype(np.float64)
    for number, factor in enumerate(factors, start=1):
        result = result + factor * (values[number] - values[number - 1])
    return result


def lora_delta(a: np.ndarray, b: np.ndarray, alpha: float, *, rslora: bool = False) -> np.ndarray:
    """Return what an adapter adds to a layer, alpha / r B A (Hu et al., 2021), or alpha / sqrt(r) B A with rsLoRA.

    (Kalajdzievski, A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA, 2023.)

    Args:
        a, b: the factors; A with the rank r in its first dimension, B with it in its second.
        alpha: the adapter's scale.
        rslora: whether the scale is divided by the root of r.
    """
    rank = len(a)
    scale = alpha / np.sqrt(rank) if rslora else alpha / rank
    return scale * (b.reshape(len(b), rank).astype(np.float64) @ a.reshape(rank, -1).astype(np.float64))


def nearest_of_rank(matrix: np.ndarray, rank: int) -> np.ndarray:
    """Return the nearest matrix of a rank, by the singular values of the whole one (Eckart and Young, 1936)."""
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * values[:rank]) @ v[:rank]
