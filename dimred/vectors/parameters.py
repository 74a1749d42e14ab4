"""Convert a cell's parameters to named arrays, and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore import dtype as mstype

from dimred.errors import CheckpointError

FLOATS = (mstype.float16, mstype.bfloat16, mstype.float32, mstype.float64)


def to_arrays(parameters: Iterable[Parameter]) -> dict[str, np.ndarray]:
    """Copy parameters to the host, by name.

    Raises:
        CheckpointError: two parameters share a name, so a file could hold only one of them.
    """
    arrays: dict[str, np.ndarray] = {}
    for parameter in parameters:
        if parameter.name in arrays:
            raise CheckpointError(f"two parameters are named {parameter.name!r}; give each cell's parameters a prefix")
        arrays[parameter.name] = parameter.asnumpy().copy()
    return arrays


def from_arrays(parameters: Iterable[Parameter], arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Set every parameter to the array with its name, or none if one does not fit; ignore all other arrays.

    Raises:
        CheckpointError: an array is missing, has a different shape, or holds integers where the parameter holds floats;
            the message begins with ``source``.
    """
    parameters = list(parameters)
    check_arrays(parameters, arrays, source)
    for parameter in parameters:
        put_array(parameter, np.asarray(arrays[parameter.name]))


def put_array(parameter: Parameter, array: np.ndarray) -> None:
    """Copy an array of the parameter's shape into the parameter's own memory; see ``workarounds.moved_memory``."""
    ops.assign(parameter, Tensor(array, parameter.dtype))


def check_arrays(parameters: Iterable[Parameter], arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Check that every parameter has an array of its shape, with floats if the parameter holds floats.

    Raises:
        CheckpointError: as ``from_arrays``.
    """
    for parameter in parameters:
        _check_fit(parameter, arrays.get(parameter.name), source)


def _check_fit(parameter: Parameter, array: np.ndarray | None, source: str) -> None:
    if array is None:
        raise CheckpointError(_absence(parameter, source))
    if tuple(array.shape) != tuple(parameter.shape):
        raise CheckpointError(
            f"{source} has {parameter.name!r} with the shape {tuple(array.shape)}, but the network has "
            f"{tuple(parameter.shape)}"
        )
    if parameter.dtype in FLOATS and array.dtype.kind in "biuc":
        raise CheckpointError(
            f"{source} has {parameter.name!r} in the type {array.dtype}, but the network has {parameter.dtype}; save "
            "the weights as floats, from before they were quantised"
        )


def _absence(parameter: Parameter, source: str) -> str:
    message = f"{source} has no {parameter.name!r}; it belongs to another network or is another kind of checkpoint"
    if parameter.requires_grad:
        return message
    return (
        f"{message}, such as snapshots or their merge, which have the trained weights alone; dimred merge --rest takes "
        "the others from a full checkpoint"
    )


def first_not_finite(parameters: Iterable[Parameter]) -> str | None:
    """Return the name of the first parameter that holds an infinity or NaN; None if there is none."""
    floats = (parameter for parameter in parameters if parameter.dtype in FLOATS)
    for parameter in floats:
        if not np.isfinite(parameter.asnumpy().astype(np.float64)).all():
            return parameter.name
    return None


@contextmanager
def preserved(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Restore the parameters' values, byte for byte, after a block that may set them."""
    before = to_arrays(parameters)
    try:
        yield
    finally:
        from_arrays(parameters, before, "the values from before")
