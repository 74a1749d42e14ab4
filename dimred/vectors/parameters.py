"""Convert parameters of a cell to named arrays, and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore import dtype as mstype

from dimred.errors import CheckpointError
from dimred.vectors.weights import is_on_host

_FLOATS = (mstype.float16, mstype.bfloat16, mstype.float32, mstype.float64)


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
        CheckpointError: an array is missing, has a different shape, or integers where the parameter has floats; the
            message begins with ``source``.
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
    """Check that every parameter has an array of its shape, and one of floats if it is of floats.

    Raises:
        CheckpointError: as ``from_arrays``.
    """
    for parameter in parameters:
        if parameter.name not in arrays:
            remedy = "it belongs to another network or is another kind of checkpoint"
            if not parameter.requires_grad:
                remedy += (
                    ", such as snapshots or their merge, which have the trained weights alone; dimred merge --rest "
                    "takes the others from a full checkpoint"
                )
            raise CheckpointError(f"{source} has no {parameter.name!r}; {remedy}")
        shape, dtype = arrays[parameter.name].shape, arrays[parameter.name].dtype
        if tuple(shape) != tuple(parameter.shape):
            raise CheckpointError(
                f"{source} has {parameter.name!r} with the shape {tuple(shape)}, the network {tuple(parameter.shape)}"
            )
        if parameter.dtype in _FLOATS and dtype.kind in "biuc":
            raise CheckpointError(
                f"{source} has {parameter.name!r} in the type {dtype}, the network {parameter.dtype}; save the weights "
                "as floats, such as from before they were quantised"
            )


def first_not_finite(parameters: Iterable[Parameter]) -> str | None:
    """Return the name of the first parameter that has an infinite number or NaN; None if there is none."""
    floats = (parameter for parameter in parameters if parameter.dtype in _FLOATS)
    return next((one.name for one in floats if not np.isfinite(one.asnumpy().astype(np.float64)).all()), None)


@contextmanager
def preserved(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Restore the parameters' values, byte for byte, after a block that may set them."""
    before = to_arrays(parameters)
    try:
        yield
    finally:
        from_arrays(parameters, before, "the values from before")


class KnownMemory:
    """A guard that keeps parameters in the memory that compiled graphs know, whoever sets their values.

    ``mindspore.load_param_into_net`` and ``Parameter.set_data`` give a parameter new memory. A graph with control flow
    that was compiled before, and in PyNative an optimizer of MindSpore, go on writing to the old one: no later step
    would train, without a word. The new memory may also not be contiguous, as that of a transposed tensor; then
    ``HostVectors`` would write to a copy. Only for a CPU: on a device nothing of this was tried.

    Args:
        parameters: the parameters of a step.
    """

    def __init__(self, parameters: Iterable[Parameter]):
        self._parameters = list(parameters) if is_on_host() else []
        self._memories = [Tensor(0.0) for _ in self._parameters]
        for parameter in self._parameters:
            if not parameter.is_contiguous():
                parameter.set_data(Tensor(parameter.asnumpy().copy(), parameter.dtype))
        self._addresses = list[int]()
        self._note()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Before the block, move values that were set since the last one to the memory that the parameters had then."""
        if self._addresses != self._present() or not all(one.is_contiguous() for one in self._parameters):
            self._move_back()
        try:
            yield
        finally:
            if self._addresses != self._present():
                self._note()

    def _present(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters]

    def _note(self) -> None:
        self._addresses = self._present()
        for parameter, memory in zip(self._parameters, self._memories, strict=True):
            memory.assign_value(parameter)

    def _move_back(self) -> None:
        for parameter, memory in zip(self._parameters, self._memories, strict=True):
            is_elsewhere = parameter.data_ptr() != memory.data_ptr() or not parameter.is_contiguous()
            if is_elsewhere and parameter.shape == memory.shape:
                value = parameter.asnumpy().copy()
                parameter.assign_value(memory)
                put_array(parameter, value)
