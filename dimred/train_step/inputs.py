"""Convert the inputs that a user gives a step: tensors stay, NumPy arrays become tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

from dimred.errors import ConfigError

_NUMBERS = "biuf"  # kinds of NumPy types


def as_tensors(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Convert each NumPy array in a step's inputs to a tensor of its type; wider floats than float32 become float32.

    Raises:
        ConfigError: an array does not hold numbers.
    """
    return tuple(
        _as_tensor(value, number) if isinstance(value, np.ndarray) else value
        for number, value in enumerate(inputs, start=1)
    )


def _as_tensor(array: np.ndarray, number: int) -> Tensor:
    if array.dtype.kind not in _NUMBERS:
        raise ConfigError(
            f"input {number} of the step is an array of type {array.dtype} and shape {array.shape}; give numbers"
        )
    is_wide = array.dtype.kind == "f" and array.dtype.itemsize > np.dtype(np.float32).itemsize
    dtype = np.dtype(np.float32) if is_wide else array.dtype.newbyteorder("=")
    return Tensor(array.astype(dtype, order="C", copy=False))
