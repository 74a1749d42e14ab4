"""Replace dropout by cells whose masks can be drawn again.

So all losses of a search's step are comparable, and a run that is resumed goes on with the masks that it would have
drawn. MindSpore's own Dropout keeps its random state inside the kernel, where nothing can save, restore or rewind it,
and begins at the same mask in each process. Here the mask is a function of a key and the element's index, a
counter-based generator after Salmon et al. (Parallel Random Numbers: As Easy as 1, 2, 3, 2011). Element i is kept if

    q(h xor (h >> 16)) >= (p - 1/2) 2^32,   h = q(i G + key),   q(x) = x (2 x + 1)

in signed numbers of 32 bits that wrap around, with h rounded to 24 bits before the shift, which cuts towards zero. q is
the quadratic of RC6 (Rivest et al., 1998), whose high bits depend on all bits of x; G is the golden ratio's. The key
comes from the process's seed, the number of the step, the part of its batch, the cell, and the number of the call.
Within 10^7 elements no correlation was found; further apart they are up to a few percent.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from dimred.train_step.network_state import places

_GOLDEN = 0x9E3779B9
_KEY_STRIDE, _CALL_STRIDE = (int(np.array(stride, np.uint32).view(np.int32)) for stride in (0xC2B2AE35, 0x27D4EB2F))
_PART_STRIDE = 0x9E3779B1  # so large that no part of a step shares its number with a step nearby
_SEED_STRIDE = 0x85EBCA77  # the same for the seeds that processes are given
_STEPS_OF_TRAINING = 2**30
_DROPOUTS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}  # last axes that they drop as a whole


class MaskNumbers(NamedTuple):
    """The numbers that determine the masks of a network's dropout cells, () int32 each.

    Attributes:
        seed: number of the step, counted from a number that the process's seed gives.
        part: of the part of the step's batch, over all ranks.
        calls: of the cells' calls in this forward pass so far.
    """

    seed: Parameter
    part: Parameter
    calls: Parameter


class ReplayableDropout(nn.Cell):
    """A dropout cell that draws the same masks for the same numbers; kept elements are scaled by 1 / (1 - p).

    Each call draws a mask of its own, also if one cell is called twice in a pass, as ``nn.LSTM`` calls its dropout.

    Args:
        p: fraction of the elements, or of the channels, set to zero, 0 <= p <= 1.
        numbers: shared by the dropout cells of a network; a call adds 1 to ``calls``.
        site: number of this cell among the network's dropout cells, so that no two share a mask.
        n_joint: number of last axes that are dropped as a whole, such as 2 for the channels of ``nn.Dropout2d``.
    """

    def __init__(self, p: float, numbers: MaskNumbers, site: int, n_joint: int):
        super().__init__(auto_prefix=False)
        # Not registered in the cell, so that no checkpoint of the network holds them.
        for name, number in numbers._asdict().items():
            object.__setattr__(self, name, number)
        self.p = p
        self.scale = 1 / (1 - p) if p < 1 else 0.0
        self.threshold = min(round((p - 0.5) * 2**32), 2**31 - 1)
        self.n_joint = n_joint
        self.set_site(site)

    @property
    def numbers(self) -> MaskNumbers:
        """Return the numbers that determine the masks."""
        return MaskNumbers(self.seed, self.part, self.calls)

    def set_site(self, site: int) -> None:
        """Give the cell another number among the network's dropout cells."""
        self.site = site * 7919 + 1

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = x.shape[: x.ndim - self.n_joint] + (1,) * self.n_joint
        key = (self.seed + self.part + self.calls * _CALL_STRIDE) * _KEY_STRIDE + self.site
        ops.assign_add(self.calls, 1)
        kept = _bits(shape, key) >= self.threshold
        return x * (kept.astype(x.dtype) * self.scale)


def _bits(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Return int32 numbers that are spread evenly and depend only on the key and the element's index."""
    rows, columns = _indices(shape)
    bits = _quadratic((rows + key) + columns)
    # A shift by 16 bits, but for its rounding. On CPU it takes half as long as MindSpore's shift.
    bits = _quadratic(ops.bitwise_xor(bits, (bits.astype(ms.float32) * 2.0**-16).astype(ms.int32)))
    return bits.reshape(shape)


def _quadratic(x: Tensor) -> Tensor:
    return x * (x + x + 1)


@ops.constexpr
def _indices(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return a column and a row whose sums are the elements' indices times G; the indices themselves would be large."""
    sizes = [int(np.prod(shape[:axis])) for axis in range(len(shape) + 1)]
    n_rows = min(sizes, key=lambda size: size + sizes[-1] // size)
    rows = np.arange(n_rows, dtype=np.uint64)[:, None] * (sizes[-1] // n_rows)
    columns = np.arange(sizes[-1] // n_rows, dtype=np.uint64)
    return tuple(Tensor((index * _GOLDEN % 2**32).astype(np.uint32).view(np.int32)) for index in (rows, columns))


def _drop_fraction(dropout: nn.Cell) -> float:
    if isinstance(dropout, nn.Dropout1d):
        return float(dropout.prob)
    if isinstance(dropout, nn.Dropout) and dropout.p is not None:
        return float(dropout.p)
    return 1.0 - float(dropout.keep_prob)


class DropoutMasks(nn.Cell):
    """The numbers that a network's dropout cells draw their masks by, as ``make_replayable`` returns them.

    A step calls it in its graph to have new masks drawn. Without a graph of the whole step there are ``draw_next``, for
    a part of the next step, and ``draw``, for a part of any step.

    Args:
        numbers: of each group of cells; there are several if steps were made for parts of the network before.
        part: number of the part of the batch, over all ranks, that a call draws masks for.

    Attributes:
        seeds: of each group.
    """

    def __init__(self, numbers: Sequence[MaskNumbers], part: int = 0):
        super().__init__(auto_prefix=False)
        self.seeds = ParameterTuple([one.seed for one in numbers])
        # What no state holds: the part is a rank's own, and the calls begin at 0 in each pass.
        object.__setattr__(self, "parts", ParameterTuple([one.part for one in numbers]))
        object.__setattr__(self, "calls", ParameterTuple([one.calls for one in numbers]))
        self.part, self.zero = _wrapped(part * _PART_STRIDE), _wrapped(0)
        self._first_of_any = _first() + _STEPS_OF_TRAINING

    def construct(self) -> None:
        for index in range(len(self.seeds)):
            ops.assign_add(self.seeds[index], 1)
            ops.assign(self.parts[index], self.part)
            ops.assign(self.calls[index], self.zero)

    def draw_next(self, part: int, *, is_same_step: bool) -> None:
        """Draw the masks of a part of the next step's batch, or of the step that they were last drawn for."""
        for seed in () if is_same_step else self.seeds:
            ops.assign_add(seed, 1)
        self._begin(part)

    def draw(self, step: int, part: int) -> None:
        """Draw the masks of a step and a part of its batch: the same numbers give the same masks.

        They are other ones than those of the first 2^30 steps that are counted by drawing the next ones.
        """
        for seed in self.seeds:
            ops.assign(seed, _wrapped(self._first_of_any + step))
        self._begin(part)

    def _begin(self, part: int) -> None:
        for number, calls in zip(self.parts, self.calls, strict=True):
            ops.assign(number, _wrapped(part * _PART_STRIDE))
            ops.assign(calls, self.zero)


def _first() -> int:
    """Return the number from which steps are counted, by ``mindspore.set_seed``."""
    return (ms.get_seed() or 0) * _SEED_STRIDE


def _wrapped(number: int) -> Tensor:
    return Tensor(np.array(number % 2**32, np.uint32).view(np.int32))


def make_replayable(network: nn.Cell, part: int = 0) -> DropoutMasks:
    """Replace every dropout cell of the network, in place, by one whose masks follow numbers that all of them share.

    One cell in two places becomes two cells, each with masks of its own. Cells from an earlier call keep their numbers,
    so that the earlier step still draws their masks. A class of one's own that inherits from ``nn.Dropout`` and has
    another ``construct`` stays as it is.

    Args:
        network: the network.
        part: see ``DropoutMasks``.
    """
    cells = places(network)
    earlier = [place.cell for place in cells if isinstance(place.cell, ReplayableDropout)]
    dropouts = [place for place in cells if _is_dropout(place.cell)]
    if not (earlier or dropouts):
        return DropoutMasks(())
    numbers = list({id(cell.seed): cell.numbers for cell in earlier}.values())
    if not numbers:
        values = {"seed": _first(), "part": 0, "calls": 0}
        numbers = [MaskNumbers(**{name: _parameter(f"dropout_{name}", value) for name, value in values.items()})]
    for index, group in enumerate(numbers[1:], start=1):
        for name, number in group._asdict().items():
            number.name = f"dropout_{name}_{index}"
    for site, cell in enumerate(earlier):
        cell.set_site(site)
    for site, place in enumerate(dropouts, start=len(earlier)):
        n_joint = next(n for kind, n in _DROPOUTS.items() if isinstance(place.cell, kind))
        replacement = ReplayableDropout(_drop_fraction(place.cell), numbers[0], site, n_joint)
        replacement.set_train(place.cell.training)
        place.put(replacement)
    return DropoutMasks(numbers, part)


def _parameter(name: str, value: int) -> Parameter:
    return Parameter(_wrapped(value), name=name, requires_grad=False)


def _is_dropout(cell: nn.Cell) -> bool:
    return any(isinstance(cell, kind) and type(cell).construct is kind.construct for kind in _DROPOUTS)
