"""The inputs of samples: convert them to types that MindSpore takes, and find numbers that are not finite."""

import numpy as np

_FLOAT = np.dtype(np.float32)


def plain_input(array: np.ndarray) -> np.ndarray:
    """Return an input as MindSpore takes it: in this machine's byte order, and floats wider than float32 as float32."""
    is_wide = array.dtype.kind == "f" and array.dtype.itemsize > _FLOAT.itemsize
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite
        return array.astype(_FLOAT if is_wide else array.dtype.newbyteorder("="), copy=False)


def not_finite(array: np.ndarray) -> str | None:
    """Return the first NaN or infinity with its index, such as ``nan at [0, 2]``; None if all numbers are finite."""
    if array.dtype.kind != "f":
        return None
    places = np.argwhere(~np.isfinite(array))
    if not len(places):
        return None
    place = tuple(places[0].tolist())
    return f"{array[place]} at {list(place)}" if place else str(array[place])
