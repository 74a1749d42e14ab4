"""The curves from 1 to 0 that learning rates, cooldowns and averaging coefficients follow."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

CurveName = Literal["linear", "cosine", "1-sqrt"]

CURVES: dict[CurveName, Callable[[Any], Any]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + np.cos(np.pi * x)) / 2,
    "1-sqrt": lambda x: 1 - np.sqrt(x),
}
"""Name -> function that falls from 1 to 0 as x, a number or an array, goes from 0 to 1.

cosine: Loshchilov & Hutter, SGDR, 2017, equation 5, without restarts. 1-sqrt: Hägele et al., Scaling Laws and
Compute-Optimal Training Beyond Fixed Training Durations, 2024.
"""
