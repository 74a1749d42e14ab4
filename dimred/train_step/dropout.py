"""Replace dropout by cells whose masks can be drawn again.

So all losses of a search's step are comparable, and a run that is resumed goes on with the masks that it would have
drawn. MindSpore's own Dropout keeps its random state inside the kernel, where nothing can save, restore or rewind it,
and begins at the same mask in each process. Here the mask is a function of a key and the element's index, a
counter-based generator after Salmon et al. (Parallel Random Numbers: As Easy as 1, 2, 3, 2011). Element i is kept if

    q(h xor (h >> 16)) >= (p - 1/2) 2^32,   h = q(i G + key),   q(x) = x (2 x + 1)

in signed numbers of 32 bits that wrap around. q is the quadratic of RC6 (Rivest et al., 1998), whose high bits depend
on all bits of x; G is the golden ratio's. The key comes from the number of the step, the part of its batch, and the
cell.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from dimred.train_step.network_state import places

_GOLDEN = 0x9E3779B9
_KEY_STRIDE = int(np.array(0xC2B2AE35, np.uint32).view(np.int32))
_PART_STRIDE = 0x9E3779B1  # so large that no part of a step shares its number with a step nearby
_SEED_STRIDE = 0x85EBCA77  # the same for the seeds of parts of the network
_DROPOUTS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}  # last axes that they drop as a whole


class ReplayableDropout(nn.Cell):
    """A dropout cell that draws the same mask for the same seed and part; kept elements are scaled by 1 / (1 - p).

    So a forward pass that calls a cell twice on inputs of the same shape uses the same mask twice.

    Args:
        p: fraction of the elements, or of the channels, set to zero, 0 <= p <= 1.
        seed: () int32, the step's number, shared by all dropout cells of a network.
        part: () int32, added to ``seed``, for the part of the step's batch.
        site: number of this cell among the network's dropout cells, so that no two share a mask.
        n_joint: number of last axes that are dropped as a whole, such as 2 for the channels of ``nn.Dropout2d``.
    """

    def __init__(self, p: float, seed: Parameter, part: Parameter, site: int, n_joint: int):
        super().__init__(auto_prefix=False)
        # Not registered in the cell, so that no checkpoint of the network holds them.
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "part", part)
        self.p = p
        self.scale = 1 / (1 - p) if p < 1 else 0.0
        self.threshold = min(round((p - 0.5) * 2**32), 2**31 - 1)
        self.site = site * 7919 + 1
        self.n_joint = n_joint

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = x.shape[: x.ndim - self.n_joint] + (1,) * self.n_joint
        kept = _bits(shape, (self.seed + self.part) * _KEY_STRIDE + self.site) >= self.threshold
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

    Call it, also inside a graph, to have the masks of the next step drawn; or call ``draw`` for those of any step.

    Args:
        numbers: (seed, part) of each group of cells; see ``ReplayableDropout``.

    Attributes:
        seeds: () int32 each, one if the network has dropout; more if steps were made for parts of it before.
    """

    def __init__(self, numbers: Sequence[tuple[Parameter, Parameter]]):
        super().__init__(auto_prefix=False)
        self.seeds = ParameterTuple([seed for seed, _ in numbers])
        object.__setattr__(self, "_parts", [part for _, part in numbers])  # a rank's own, which no state holds

    def construct(self) -> None:
        for seed in self.seeds:
            ops.assign_add(seed, 1)

    def set_part(self, part: int) -> None:
        """Set the number of the part of the batch, over all ranks, that masks are drawn for from now on."""
        for parameter in self._parts:
            ops.assign(parameter, _wrapped(part * _PART_STRIDE))

    def draw(self, step: int, part: int) -> None:
        """Draw the masks of a step and a part of its batch: the same numbers give the same masks."""
        for index, seed in enumerate(self.seeds):
            ops.assign(seed, _wrapped(step + index * _SEED_STRIDE))
        self.set_part(part)


def _wrapped(number: int) -> Tensor:
    return Tensor(np.array(number % 2**32, np.uint32).view(np.int32))


def _number(name: str) -> Parameter:
    return Parameter(Tensor(0, ms.int32), name=name, requires_grad=False)


def make_replayable(network: nn.Cell) -> DropoutMasks:
    """Replace every dropout cell of the network, in place, by one whose masks follow a shared seed.

    One cell in two places becomes two cells, each with masks of its own. Cells from an earlier call keep their seed.
    """
    cells = places(network)
    earlier = [place.cell for place in cells if isinstance(place.cell, ReplayableDropout)]
    dropouts = [place for place in cells if isinstance(place.cell, tuple(_DROPOUTS))]
    if not (earlier or dropouts):
        return DropoutMasks(())
    numbers = list({id(cell.seed): (cell.seed, cell.part) for cell in earlier}.values())
    if not numbers:
        numbers = [
            tuple(
                Parameter(Tensor(0, ms.int32), name=name, requires_grad=False)
                for name in ("dropout_seed", "dropout_part")
            )
        ]
    for index, (seed, _) in enumerate(numbers[1:], start=1):
        seed.name = f"dropout_seed_{index}"
    for site, place in enumerate(dropouts, start=len(earlier)):
        n_joint = next(n for kind, n in _DROPOUTS.items() if isinstance(place.cell, kind))
        replacement = ReplayableDropout(_drop_fraction(place.cell), *numbers[0], site, n_joint)
        replacement.set_train(place.cell.training)
        place.put(replacement)
    return DropoutMasks(numbers)
