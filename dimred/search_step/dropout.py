"""Replace dropout with cells whose masks can be drawn again, so that a search step compares like with like.

MindSpore's own Dropout keeps its random state inside the kernel, where nothing can rewind it. Here the mask is a
function of a key and the element's index, a counter-based generator after Salmon et al. (Parallel Random Numbers: As
Easy as 1, 2, 3, 2011). Element i is kept if

    q(h xor (h >> 16)) >= (p - 1/2) 2^32,   h = q(i G + key),   q(x) = x (2 x + 1)

in signed 32-bit integers that wrap around. h is rounded to 24 bits before the shift, which truncates towards zero. q is
the quadratic of RC6 (Rivest et al., 1998), whose high bits depend on all bits of x; G is 2^32 over the golden ratio.
The key comes from the run's seed, the step's number, the part of the batch, the cell, and the call's number.
No correlation was found between elements up to 10^7 apart; further apart, correlations reach a few percent.
"""

import functools

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.search_step.attention import ReplayableAttention
from dimred.train_step.places import places

_GOLDEN = 0x9E3779B9
_KEY_STRIDE, _CALL_STRIDE = (int(np.array(stride, np.uint32).view(np.int32)) for stride in (0xC2B2AE35, 0x27D4EB2F))
_PART_STRIDE = 0x9E3779B1  # so large that no part of a step gets the number of a nearby step
_SEED_STRIDE = 0x85EBCA77  # likewise for the runs' seeds
# How many of the last axes each drops as a whole.
_DROPOUTS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


@functools.cache
def _number(name: str) -> Parameter:
    """Return a number that all cells in the process share: the key, or the count of calls in this forward pass."""
    return Parameter(_wrapped(0), name=name, requires_grad=False)


class ReplayableDropout(nn.Cell):
    """A dropout cell that draws the same masks for the same numbers; kept elements are scaled by 1 / (1 - p).

    Each call draws its own mask, even if one cell is called twice in a pass, as ``nn.LSTM`` calls its dropout.

    Args:
        p: fraction of the elements, or of the channels, set to zero, 0 <= p <= 1.
        n_joint: number of last axes that are dropped together, such as 2 for the channels of ``nn.Dropout2d``.
        site: this cell's number among the network's dropout cells, so that no two share a mask.
    """

    def __init__(self, p: float, n_joint: int, site: int):
        super().__init__(auto_prefix=False)
        for name in ("key", "calls"):
            object.__setattr__(self, name, _number(name))  # not registered, so that no checkpoint holds it
        self.p = p
        self.scale = 1 / (1 - p) if p < 1 else 0.0
        self.threshold = min(round((p - 0.5) * 2**32), 2**31 - 1)
        self.n_joint = n_joint
        self.site = site

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = x.shape[: x.ndim - self.n_joint] + (1,) * self.n_joint
        key = (self.key + self.calls * _CALL_STRIDE) * _KEY_STRIDE + (self.site * 7919 + 1)
        ops.assign_add(self.calls, 1)
        kept = _bits(shape, key) >= self.threshold
        return x * (kept.astype(x.dtype) * self.scale)


def make_replayable(network: nn.Cell) -> bool:
    """Replace every dropout cell in the network, in place, with one whose masks ``draw_masks`` determines.

    ``nn.MultiheadAttention`` has no cell for its dropout; if it drops anything, it is replaced too. One cell in two
    places becomes two cells, each with its own masks. A user's subclass with a different ``construct`` is left alone.

    Returns:
        Whether the network has any dropout.
    """
    cells = places(network)
    # An earlier search may have left some.
    replayable = [place.cell for place in cells if isinstance(place.cell, ReplayableDropout)]
    for place in cells:
        for kind, n_joint in _DROPOUTS.items():
            if isinstance(place.cell, kind) and type(place.cell).construct is kind.construct:
                cell = ReplayableDropout(_drop_fraction(place.cell), n_joint, 0)
                replayable.append(cell.set_train(place.cell.training))
                place.put(cell)
        if draws_masks_inside(place.cell):
            replayable.append(ReplayableDropout(float(place.cell.dropout), 0, 0))
            place.put(ReplayableAttention(place.cell, replayable[-1]))
    for site, cell in enumerate(replayable):
        cell.site = site
    return bool(replayable)


def draws_masks_inside(cell: nn.Cell) -> bool:
    """Return whether a cell is MindSpore's attention with dropout."""
    construct = nn.MultiheadAttention.construct
    return isinstance(cell, nn.MultiheadAttention) and type(cell).construct is construct and cell.dropout > 0


def draw_masks(seed: int, step: int, part: int) -> None:
    """Choose the masks for the next forward pass; the same numbers give the same masks.

    Args:
        seed: the run's seed, the same on all ranks.
        step: the step's number.
        part: the part's number, counted over all ranks.
    """
    ops.assign(_number("key"), _wrapped(seed * _SEED_STRIDE + step + part * _PART_STRIDE))
    ops.assign(_number("calls"), _wrapped(0))


def _drop_fraction(dropout: nn.Cell) -> float:
    if isinstance(dropout, nn.Dropout1d):
        return float(dropout.prob)
    if isinstance(dropout, nn.Dropout) and dropout.p is not None:
        return float(dropout.p)
    return 1.0 - float(dropout.keep_prob)


def _bits(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Return uniformly distributed int32 numbers that depend only on the key and the element's index."""
    rows, columns = _indices(shape)
    bits = _quadratic((rows + key) + columns)
    # This is a shift by 16 bits, apart from rounding. On CPU it takes half as long as MindSpore's shift.
    bits = _quadratic(ops.bitwise_xor(bits, (bits.astype(ms.float32) * 2.0**-16).astype(ms.int32)))
    return bits.reshape(shape)


def _quadratic(x: Tensor) -> Tensor:
    return x * (x + x + 1)


@ops.constexpr
def _indices(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return a column and a row that add up to the elements' indices times G, without a large tensor of indices."""
    sizes = [int(np.prod(shape[:axis])) for axis in range(len(shape) + 1)]
    n_rows = min(sizes, key=lambda size: size + sizes[-1] // size)
    rows = np.arange(n_rows, dtype=np.uint64)[:, None] * (sizes[-1] // n_rows)
    columns = np.arange(sizes[-1] // n_rows, dtype=np.uint64)
    return tuple(Tensor((index * _GOLDEN % 2**32).astype(np.uint32).view(np.int32)) for index in (rows, columns))


def _wrapped(number: int) -> Tensor:
    return Tensor(np.array(number % 2**32, np.uint32).view(np.int32))
