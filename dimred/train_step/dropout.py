"""Replace dropout by cells whose masks can be drawn again.

So all losses of a search's step are comparable, and a run that is resumed goes on with the masks that it would have
drawn. MindSpore's own Dropout keeps its random state inside the kernel, where nothing can save, restore or rewind it,
and begins at the same mask in each process. Here the mask is a function of a seed, the rank, and the element's index (a
counter-based generator, after Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011; the mixing constants
are those of the Murmur3 and xxHash finalisers). The seed changes once per step or micro-batch.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from dimred.train_step.network_state import places

_GOLDEN, _MIX_1, _MIX_2 = (int(np.array(c, np.uint32).view(np.int32)) for c in (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35))
_PART_STRIDE = 0x9E3779B1  # so large that no part of a step shares its number with a step nearby
_RANK_STRIDE = 0xC2B2AE3D  # the same for the ranks' cells
_SEED_STRIDE = 0x85EBCA77  # the same for the seeds of parts of the network
_DROPOUTS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}  # last axes that they drop as a whole


class ReplayableDropout(nn.Cell):
    """A dropout cell that draws the same mask for the same seed; kept elements are scaled by 1 / (1 - p).

    So a forward pass that calls a cell twice on inputs of the same shape uses the same mask twice.

    Args:
        p: fraction of the elements, or of the channels, set to zero, 0 <= p <= 1.
        seed: () int32, shared by all dropout cells of a network.
        site: number of this cell among the network's dropout cells, so that no two share a mask.
        rank: this process's rank, so that no two ranks share masks.
        n_joint: number of last axes that are dropped as a whole, such as 2 for the channels of ``nn.Dropout2d``.
    """

    def __init__(self, p: float, seed: Parameter, site: int, rank: int, n_joint: int):
        super().__init__(auto_prefix=False)
        # Not registered in the cell, so that no checkpoint of the network holds it.
        object.__setattr__(self, "seed", seed)
        self.p = p
        self.keep_prob = 1.0 - p if p < 1 else 1.0
        self.site = (site * 7919 + rank * _RANK_STRIDE + 1) % 2**31
        self.n_joint = n_joint

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = x.shape[: x.ndim - self.n_joint] + (1,) * self.n_joint
        mask = (_uniform(shape, self.seed * _MIX_2 + self.site) >= self.p).astype(x.dtype)
        return x * mask / self.keep_prob


def _uniform(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Return an array of numbers in [0, 1] that depend only on the key and the element's index."""
    count = 1
    for size in shape:
        count *= size
    bits = ops.arange(0, count, 1).astype(ms.int32) * _GOLDEN + key
    bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, Tensor(15, ms.int32))) * _MIX_1
    bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, Tensor(13, ms.int32))) * _MIX_2
    return (bits.astype(ms.float32) * 2.0**-32 + 0.5).reshape(shape)


def _drop_fraction(dropout: nn.Cell) -> float:
    if isinstance(dropout, nn.Dropout1d):
        return float(dropout.prob)
    if isinstance(dropout, nn.Dropout) and dropout.p is not None:
        return float(dropout.p)
    return 1.0 - float(dropout.keep_prob)


class DropoutMasks(nn.Cell):
    """The seeds that a network's dropout cells draw their masks by, as ``make_replayable`` returns them.

    Call it, also inside a graph, to have new masks drawn; or call ``draw`` for masks that can be drawn again.

    Attributes:
        seeds: () int32 each; there are none for a network without dropout.
    """

    def __init__(self, seeds: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.seeds = ParameterTuple(seeds)

    def construct(self) -> None:
        for seed in self.seeds:
            ops.assign_add(seed, 1)

    def draw(self, step: int, part: int = 0) -> None:
        """Set the seeds by the step's number and that of a part of its batch: the same numbers give the same masks."""
        for index, seed in enumerate(self.seeds):
            number = np.array((step + part * _PART_STRIDE + index * _SEED_STRIDE) % 2**32, np.uint32)
            ops.assign(seed, Tensor(number.view(np.int32)))


def make_replayable(network: nn.Cell, rank: int = 0) -> DropoutMasks:
    """Replace every dropout cell of the network, in place, by one whose masks follow a shared seed.

    One cell in two places becomes two cells, each with masks of its own. Cells from an earlier call keep their seed.

    Args:
        network: the network.
        rank: this process's rank, if masks are to differ between ranks whose seeds are the same.
    """
    cells = places(network)
    earlier = [place.cell for place in cells if isinstance(place.cell, ReplayableDropout)]
    dropouts = [place for place in cells if isinstance(place.cell, tuple(_DROPOUTS))]
    if not (earlier or dropouts):
        return DropoutMasks(())
    seeds = list({id(cell.seed): cell.seed for cell in earlier}.values())  # several, if steps were made for parts
    seeds = seeds or [Parameter(Tensor(0, ms.int32), name="dropout_seed", requires_grad=False)]
    for index, seed in enumerate(seeds[1:], start=1):
        seed.name = f"dropout_seed_{index}"
    for site, place in enumerate(dropouts, start=len(earlier)):
        n_joint = next(n for kind, n in _DROPOUTS.items() if isinstance(place.cell, kind))
        replacement = ReplayableDropout(_drop_fraction(place.cell), seeds[0], site, rank, n_joint)
        replacement.set_train(place.cell.training)
        place.put(replacement)
    return DropoutMasks(seeds)
