"""Mixed precision: cells that compute in half precision. Weights and their updates stay float32."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import mindspore as ms
from mindspore import Tensor, amp, nn, ops

from dimred.errors import ConfigError, check_choice, check_type
from dimred.train_step.places import Place, places
from dimred.train_step.statistics import BATCH_NORMS

LEVELS = ("O0", "O1", "O2", "O3")
HALF_TYPES = {"float16": ms.float16, "bfloat16": ms.bfloat16}
TYPES = HALF_TYPES | {"float32": ms.float32}
_each = ops.HyperMap()  # also over nested tuples, such as those of an LSTM
_RECURRENT = (nn.RNNCell, nn.GRUCell, nn.LSTMCell)  # graphs do not compile them in half precision


def with_precision(
    network: nn.Cell,
    level: str = "O0",
    *,
    dtype: str = "float16",
    keep_batch_norm: bool | None = None,
    casts: Mapping[str, str] | None = None,
) -> nn.Cell:
    """Convert cells of a network to half precision; its output and its parameters stay float32.

    O0: no cells; O1: the convolutions and dense layers of the white list, each of which returns float32;
    O2: all but those on the black list (normalisation layers); O3: all. The lists are those of ``mindspore.amp``,
    and so is the conversion in O2 and O3; its O1 would write a rewritten program into the working folder.

    Args:
        network: a network without its loss, which gets float32. It may be changed in place; use the returned one.
        level: ``O0``, ``O1``, ``O2``, ``O3``.
        dtype: ``float16`` or ``bfloat16``.
        keep_batch_norm: whether BatchNorm computes in float32 in O2 and O3; by default in O2 only.
        casts: pattern of cells' names in the network (with ``*`` and ``?``) -> type that these cells compute in at any
            level, such as ``{"classifier": "float32"}``.

    Returns:
        The converted network, whose parameters are those of the one that was given.

    Raises:
        ConfigError: an argument has a value that is not allowed, a pattern matches no cell, or the device can't compute
            in a type.
    """
    check_type("network", network, nn.Cell, "a cell, without its loss")
    check_choice("level", level, LEVELS)
    check_choice("dtype", dtype, HALF_TYPES)
    check_type("keep_batch_norm", keep_batch_norm, (bool, type(None)), "True, False or None")
    check_type("casts", casts, (Mapping, type(None)), "a mapping from patterns of cells' names to types")
    casts = dict(casts or {})
    for pattern, name in casts.items():
        check_choice(f"casts[{pattern!r}]", name, TYPES)
    if level != "O0":
        _check_device(network, "dtype is", dtype)
    for name in sorted({*casts.values()} - {"float32"}):
        _check_device(network, "casts has", name)
    if level == "O1":
        white = tuple(kind for kind in amp.get_white_list() if issubclass(kind, nn.Cell) and kind not in _RECURRENT)
        _convert([place for place in places(network) if isinstance(place.cell, white)], dtype)
        if isinstance(network, white):  # it has no place in another cell
            network = _ComputesIn(network, TYPES[dtype])
    elif level in ("O2", "O3"):
        keep = level == "O2" if keep_batch_norm is None else keep_batch_norm
        norms = (*BATCH_NORMS, nn.BatchNorm3d)
        standard = [kind for kind in amp.get_black_list() if kind not in norms] if level == "O2" else []
        black = [*standard, *(norms if keep else ())]
        network = amp.custom_mixed_precision(network, black_list=black, dtype=HALF_TYPES[dtype])
    for pattern, name in casts.items():
        fitting = [place for place in places(network) if fnmatch(place.path, pattern)]
        if not fitting:
            raise ConfigError(f"casts has {pattern!r}, which fits no cell of the network; see dimred summary")
        _convert(fitting, name)
    return network


class _ComputesIn(nn.Cell):
    """A cell that computes in one type, and returns float32."""

    def __init__(self, cell: nn.Cell, dtype: ms.Type):
        super().__init__(auto_prefix=False)
        self.cell = cell.to_float(dtype)

    def construct(self, *inputs: Any) -> Any:
        return _each(as_float32, self.cell(*inputs))


def as_float32(tensor: Tensor) -> Tensor:
    """Return a tensor's values as float32; a graph can call this, too."""
    return tensor.astype(ms.float32)


def half_as_float32(tensor: Tensor) -> Tensor:
    """Return a tensor of half precision as float32, and any other as it is; a graph can call this, too."""
    return tensor.astype(ms.float32) if tensor.dtype in (ms.float16, ms.bfloat16) else tensor


def _convert(fitting: Sequence[Place], dtype: str) -> None:
    """Wrap the cells in these places so that they compute in this type."""
    for place in fitting:
        place.put(_ComputesIn(place.cell, TYPES[dtype]))


def _check_device(network: nn.Cell, argument: str, dtype: str) -> None:
    """Check by small operations that the device can compute in this type; otherwise training would fail much later."""
    kinds = {type(cell) for _, cell in network.cells_and_names()}
    ones = ops.ones((1, 1, 1, 1), TYPES[dtype])
    try:
        if any(issubclass(kind, nn.Conv2d) for kind in kinds):
            ops.conv2d(ones, ones).astype(ms.float32).asnumpy()
        ops.matmul(ones[0, 0], ones[0, 0]).astype(ms.float32).asnumpy()
    except (RuntimeError, TypeError) as error:
        device = ms.get_context("device_target")
        raise ConfigError(
            f"{argument} {dtype!r}, in which the device {device} can't compute this network's layers; use "
            "float16, or level O0"
        ) from error
