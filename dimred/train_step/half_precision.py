"""Convert a network's cells to half precision."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import mindspore as ms
from mindspore import Tensor, amp, nn, ops

from dimred.errors import ConfigError
from dimred.train_step.places import Place, places
from dimred.train_step.statistics import BATCH_NORMS

_each = ops.HyperMap()  # also over nested tuples, such as an LSTM's
_RECURRENT = (nn.RNNCell, nn.GRUCell, nn.LSTMCell)  # graphs do not compile them in half precision


def convert(
    network: nn.Cell, level: str, dtype: str, keep_batch_norm: bool | None, casts: Mapping[str, str]
) -> nn.Cell:
    """Convert a network; the arguments are as for ``with_precision``.

    Raises:
        ConfigError: a pattern matches no cell, or the device can't compute in one of the types.
    """
    if level != "O0":
        _check_device(network, dtype, f"dtype is {dtype!r}", "set level to O0")
    for name in sorted({*casts.values()} - {"float32"}):
        _check_device(network, name, f"casts has {name!r}", "leave it out of casts")
    if level == "O1":
        white = tuple(kind for kind in amp.get_white_list() if issubclass(kind, nn.Cell) and kind not in _RECURRENT)
        _convert([place for place in places(network) if isinstance(place.cell, white)], dtype)
        if isinstance(network, white):  # no other cell holds it
            network = _ComputesIn(network, dtype)
    elif level in ("O2", "O3"):
        keep = level == "O2" if keep_batch_norm is None else keep_batch_norm
        norms = (*BATCH_NORMS, nn.BatchNorm3d)
        standard = [kind for kind in amp.get_black_list() if kind not in norms] if level == "O2" else []
        black = [*standard, *(norms if keep else ())]
        network = amp.custom_mixed_precision(network, black_list=black, dtype=getattr(ms, dtype))
    for pattern, name in casts.items():
        fitting = [place for place in places(network) if fnmatch(place.path, pattern)]
        if not fitting:
            raise ConfigError(
                f"casts has {pattern!r}, which matches no cell of the network; see dimred summary", argument="casts"
            )
        _convert(fitting, name)
    return network


class _ComputesIn(nn.Cell):
    """A cell that computes in one type and returns float32."""

    def __init__(self, cell: nn.Cell, dtype: str):
        super().__init__(auto_prefix=False)
        self.cell = cell.to_float(getattr(ms, dtype))

    def construct(self, *inputs: Any) -> Any:
        return _each(_as_float32, self.cell(*inputs))


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.astype(ms.float32)


def _convert(fitting: Sequence[Place], dtype: str) -> None:
    """Wrap the cells in these places so that they compute in this type."""
    for place in fitting:
        place.put(_ComputesIn(place.cell, dtype))


def _check_device(network: nn.Cell, dtype: str, given: str, remedy: str) -> None:
    """Check with small operations that the device can compute in this type; otherwise training fails much later."""
    ones = ops.ones((1, 1, 1, 1), getattr(ms, dtype))
    try:
        if any(isinstance(cell, nn.Conv2d) for _, cell in network.cells_and_names()):
            ops.conv2d(ones, ones).astype(ms.float32).asnumpy()
        ops.matmul(ones[0, 0], ones[0, 0]).astype(ms.float32).asnumpy()
    except (RuntimeError, TypeError) as error:
        device = ms.get_context("device_target")
        raise ConfigError(
            f"{given}, but the device {device} can't compute this network's layers in {dtype}; {remedy}, or use "
            "another type"
        ) from error
