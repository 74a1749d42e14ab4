"""Setting a parameter's values gives it new memory, while compiled graphs keep using the old memory.

``mindspore.load_param_into_net`` and ``Parameter.set_data`` give a parameter new memory. An already compiled graph with
control flow keeps writing to the old memory, and so does a MindSpore optimizer in PyNative. No later step trains then,
and nothing says so. If the values come from a transposed tensor, for example, the new memory is not contiguous, and
NumPy gets a copy instead of a view. Seen in MindSpore 2.7.1 to 2.10 on CPU; not tried on a device. We know of no
report. ``tests/workarounds`` fails once the fault is gone.
"""

from collections.abc import Iterable

import mindspore as ms
from mindspore import Parameter, Tensor, ops


class KnownMemory:
    """A guard that keeps parameters in the memory that compiled graphs know, whoever sets their values.

    Args:
        parameters: a step's parameters.
    """

    def __init__(self, parameters: Iterable[Parameter]):
        self._parameters = list(parameters) if ms.get_context("device_target") == "CPU" else []
        self._memories = [Tensor(0.0) for _ in self._parameters]
        for parameter in self._parameters:
            if not parameter.is_contiguous():
                parameter.set_data(Tensor(parameter.asnumpy().copy(), parameter.dtype))
        # Looking a method up costs as much as calling it.
        self._get_addresses = [parameter.data_ptr for parameter in self._parameters]
        self._addresses = list[int]()
        self._note()

    def ensure(self) -> None:
        """Move values that were set since the last call back into the memory that the parameters had then."""
        if self._addresses != self._present() or not all(parameter.is_contiguous() for parameter in self._parameters):
            self._move_back()
            self._note()

    def _present(self) -> list[int]:
        return [get_address() for get_address in self._get_addresses]

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
                ops.assign(parameter, Tensor(value, parameter.dtype))
