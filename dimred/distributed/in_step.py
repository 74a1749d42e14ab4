"""Exchange gradients between the ranks inside a step, and votes on whether the step is to be made."""

from itertools import accumulate

import numpy as np
from mindspore import Tensor, nn, ops

_SMALL = 2**14  # numbers; copying so many is faster than an all-reduce of its own
_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class AllReduce(nn.Cell):
    """A cell that sums tensors over all ranks, multiplies by ``share``, and returns a tuple.

    Small tensors travel as one vector: on CPU, where nothing is fused, an all-reduce of one number takes as long as one
    of thousands. Elsewhere graph mode may fuse the all-reduces.
    """

    def __init__(self, share: float):
        super().__init__(auto_prefix=False)
        self.share = share
        self.all_reduce = ops.AllReduce()
        self.all_reduce.add_prim_attr("fusion", 1)  # lets the context's all_reduce_fusion_config fuse it in groups

    def construct(self, *values: Tensor) -> tuple[Tensor, ...]:
        if len(values) == 1:
            return (self.all_reduce(values[0]) * self.share,)
        joined = self.all_reduce(ops.concat(_each(_small, values))) * self.share
        return _each(ops.partial(self._sum, joined), values, _firsts(_each(_size_if_small, values)))

    def _sum(self, joined: Tensor, value: Tensor, first: int) -> Tensor:
        if value.size > _SMALL:
            return self.all_reduce(value) * self.share
        return joined[first : first + value.size].reshape(value.shape)


class Ballot:
    """A rank's votes on its next steps, and their outcome: a step is made only if every rank votes for it.

    The step takes ``tally`` = (leave, made) and returns the next one, from the vote v_r of each rank r::

        leave <- 1 if sum_r max(leave, v_r) > 0 else 0;   made <- made + 1 - leave

    So once a rank votes to leave, no later step is made until ``count``, which waits for the device, clears the tally.

    Attributes:
        tally: (leave, made), (2,) float32, on the device. After a step it is the same on all ranks.
    """

    def __init__(self) -> None:
        self.tally = _nothing()

    def vote_to_leave(self) -> None:
        """Vote against the next step, and all later ones."""
        self.tally = self.tally + Tensor(np.array([1, 0], np.float32))

    def count(self) -> int:
        """Return how many steps were made since the last count, the same on all ranks, and clear the tally."""
        made = int(self.tally.asnumpy()[1])
        self.tally = _nothing()
        return made


def _nothing() -> Tensor:
    return Tensor(np.zeros(2, np.float32))


def _small(value: Tensor) -> Tensor:
    """Return a small tensor as a vector; of a large one only the first number, which nobody reads."""
    return value.reshape((-1,))[: _size_if_small(value)]


def _size_if_small(value: Tensor) -> int:
    return value.size if value.size <= _SMALL else 1


@ops.constexpr
def _firsts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(sizes[:-1], initial=0))
