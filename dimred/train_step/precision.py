"""Mixed precision: cells that compute in half precision. Weights and their updates stay float32."""

from collections.abc import Mapping

import mindspore as ms
from mindspore import Tensor, nn

from dimred.errors import check_choice, check_type
from dimred.train_step.half_precision import convert

_HALF_TYPES = ("float16", "bfloat16")


def with_precision(
    network: nn.Cell,
    level: str = "O0",
    *,
    dtype: str = "float16",
    keep_batch_norm: bool | None = None,
    casts: Mapping[str, str] | None = None,
) -> nn.Cell:
    """Convert a network's cells to half precision; its output and its parameters stay float32.

    O0: no cells; O1: the convolutions and dense layers on the white list, each of which returns float32;
    O2: all but those on the black list (normalisation layers); O3: all. The lists come from ``mindspore.amp``, which
    also does the conversion in O2 and O3. Its O1 is not used: it writes a rewritten program into the working folder.

    Args:
        network: a network without its loss, which gets float32. It may be changed in place; use the returned network.
        level: ``O0``, ``O1``, ``O2``, ``O3``.
        dtype: ``float16`` or ``bfloat16``.
        keep_batch_norm: whether BatchNorm computes in float32 in O2 and O3; by default in O2 only.
        casts: pattern for cell names in the network (with ``*`` and ``?``) -> type that these cells compute in at any
            level, such as ``{"classifier": "float32"}``.

    Returns:
        The converted network, with the same parameters.

    Raises:
        ConfigError: an argument has a value that is not allowed, a pattern matches no cell, or the device can't compute
            in a type.
    """
    check_type("network", network, nn.Cell, "a cell, without its loss")
    check_choice("level", level, ("O0", "O1", "O2", "O3"))
    check_choice("dtype", dtype, _HALF_TYPES)
    check_type("keep_batch_norm", keep_batch_norm, (bool, type(None)), "True, False or None")
    check_type("casts", casts, (Mapping, type(None)), "a mapping from patterns of cells' names to types")
    for pattern, name in (casts or {}).items():
        check_choice(f"casts[{pattern!r}]", name, (*_HALF_TYPES, "float32"))
    if level == "O0" and not casts:
        return network
    return convert(network, level, dtype, keep_batch_norm, casts or {})


def half_as_float32(tensor: Tensor) -> Tensor:
    """Return a half-precision tensor as float32, and any other as it is; a graph can call this, too."""
    return tensor.astype(ms.float32) if tensor.dtype in (ms.float16, ms.bfloat16) else tensor
