"""Convert parameters of a cell to named arrays, and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from mindspore import Parameter, Tensor, ops

from dimred.errors import CheckpointError


def to_arrays(parameters: Iterable[Parameter]) -> dict[str, np.ndarray]:
    """Copy parameters to the host, by name.

    Raises:
        CheckpointError: two parameters have the same name, so a file could hold only one of them.
    """
    arrays: dict[str, np.ndarray] = {}
    for parameter in parameters:
        if parameter.name in arrays:
            raise CheckpointError(f"two parameters are named {parameter.name!r}; give each cell's parameters a prefix")
        arrays[parameter.name] = parameter.asnumpy().copy()
    return arrays


def from_arrays(parameters: Iterable[Parameter], arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Set every parameter to the array of its name, or none if one does not fit; ignore arrays of other names.

    Raises:
        CheckpointError: an array is missing or has a different shape; the message begins with ``source``.
    """
    parameters = list(parameters)
    check_arrays(parameters, arrays, source)
    for parameter in parameters:
        put_array(parameter, np.asarray(arrays[parameter.name]))


def put_array(parameter: Parameter, array: np.ndarray) -> None:
    """Set a parameter to an array of its shape, in the parameter's own memory.

    ``Parameter.set_data`` would give it new memory. A graph with control flow that was compiled before, such as a
    step that drops overflows, would go on reading and writing the old one.
    """
    ops.assign(parameter, Tensor(array, parameter.dtype))


def check_arrays(parameters: Iterable[Parameter], arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Check that every parameter has an array of its shape; raise CheckpointError as ``from_arrays`` does."""
    for parameter in parameters:
        if parameter.name not in arrays:
            raise CheckpointError(
                f"{source} has no {parameter.name!r}; it belongs to another network or is another kind of checkpoint"
            )
        shape = arrays[parameter.name].shape
        if tuple(shape) != tuple(parameter.shape):
            raise CheckpointError(
                f"{source} has {parameter.name!r} with the shape {tuple(shape)}, the network {tuple(parameter.shape)}"
            )


@contextmanager
def preserved(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Restore the parameters' values, byte for byte, after a block that may set them."""
    before = to_arrays(parameters)
    try:
        yield
    finally:
        from_arrays(parameters, before, "the values from before")
