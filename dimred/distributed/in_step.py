"""Exchange gradients between the ranks inside a step, and votes on whether to make the step."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from mindspore import Tensor, nn, ops

_SMALL = 2**14  # numbers; copying up to this many is faster than a separate all-reduce
_FIRST_GROUP = 2**10  # number of the first group, as in MindSpore's ``nn.wrap.grad_reducer``
_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class AllReduce(nn.Cell):
    """A cell that sums tensors over all ranks, multiplies by ``factor``, and returns a tuple.

    Small tensors travel as one vector, because an all-reduce of one number takes as long as one of thousands.

    Args:
        factor: factor for each sum, such as 1 / R for the mean over R ranks.

    Inputs:
        float32 tensors of any shapes, the same shapes on every rank.

    Outputs:
        a tuple of float32 tensors with these shapes, the same on every rank.
    """

    def __init__(self, factor: float):
        super().__init__(auto_prefix=False)
        self.factor = factor
        self.all_reduce = ops.AllReduce()

    def construct(self, *values: Tensor) -> tuple[Tensor, ...]:
        if len(values) == 1:
            return (self.all_reduce(values[0]) * self.factor,)
        small_sums = self.all_reduce(ops.concat(_each(_small, values))) * self.factor
        return _each(ops.partial(self._sum, small_sums), values, _firsts(_each(_size_if_small, values)))

    def _sum(self, small_sums: Tensor, value: Tensor, first: int) -> Tensor:
        if value.size > _SMALL:
            return self.all_reduce(value) * self.factor
        return small_sums[first : first + value.size].reshape(value.shape)


class FusedAllReduce(nn.Cell):
    """A cell like ``AllReduce`` that lets MindSpore fuse the all-reduces of each group of tensors.

    One group can then be sent while the backward pass computes the next. The groups are the same as in MindSpore's
    ``DistributedGradReducer``, and marked in the same way. This has not run on a device; a CPU fuses nothing.

    Args:
        factor: as for ``AllReduce``.
        splits: rising indices of the tensors that end a group. The tensors after the last index are a group, too.
    """

    def __init__(self, factor: float, splits: Sequence[int]):
        super().__init__(auto_prefix=False)
        ends = [split + 1 for split in splits]
        self.bounds = tuple(pairwise([0, *ends, None]))
        self.groups = nn.CellList([_Group(factor, number) for number in range(len(self.bounds))])

    def construct(self, *values: Tensor) -> tuple[Tensor, ...]:
        sums = ()
        for number, (first, end) in enumerate(self.bounds):
            sums += self.groups[number](*values[first:end])
        return sums


class _Group(nn.Cell):
    """One group of tensors, each with its own all-reduce."""

    def __init__(self, factor: float, number: int):
        super().__init__(auto_prefix=False)
        self.factor = factor
        self.all_reduce = ops.AllReduce()
        self.all_reduce.add_prim_attr("fusion", _FIRST_GROUP + number)

    def construct(self, *values: Tensor) -> tuple[Tensor, ...]:
        return _each(self._sum, values)

    def _sum(self, value: Tensor) -> Tensor:
        return self.all_reduce(value) * self.factor


class Ballot:
    """A rank's votes on its next steps, and the outcome: a step is made only if all ranks vote for it.

    Each rank r votes v_r(t) = 0 to make step t, or 1 to leave the loop; after a 1 it votes 1 until the next read.
    ``tally`` = (leave, made) travels in the step's all-reduce, and is (0, 0) after a read::

        leave(t) = 1 if sum_r max(leave(t-1), v_r(t)) > 0 else 0
        made(t) = made(t-1) + 1 - leave(t)

    A step with leave(t) = 1 is dropped on the device like a step that overflows, but does not count as an overflow: no
    weight, optimizer state, statistic or loss scale changes. Nobody waits, and yet the ranks leave together:

    *All ranks drop the same steps.* leave(t) follows from a sum that every rank gets from the same all-reduce, and from
    leave(t-1), which by induction is the same on all.

    *The state is the state before step T*, the first step after a read that some rank votes against. leave(t) is 0 for
    t < T, and 1 from T to the next read, so nothing changes from T on, and made counts the steps before T. The losses
    of later steps are discarded.

    *No rank waits for one that does not come.* A step has the same collectives whatever the vote, because only the
    update may be left out, and it has none. A rank whose data fail takes part with its last batch, cut to the others'
    number of micro-batches, because a pass can hold a collective (SyncBatchNorm). All ranks read after the same steps
    and get the same value of made, so either all continue, or all leave and meet in the same calls (agree, save,
    report the fault).

    *Every vote counts.* A vote cast between two reads takes effect in the next step. Before an epoch's first step a
    rank may have no batch to take part with, and after the last step no step carries a vote; there the ranks call
    ``Ranks.agree``. A search reads within its step, so its ranks agree before each step.

    Attributes:
        tally: (leave, made), (2,) float32, on the device. After a step it is the same on all ranks.
    """

    def __init__(self) -> None:
        self.tally = _nothing()

    def vote_to_leave(self) -> None:
        """Vote against the next step and those after it, until ``count`` clears the tally."""
        self.tally = self.tally + Tensor(np.array([1, 0], np.float32))

    def count(self) -> int:
        """Clear the tally, and return how many steps were made since the last count, the same on all ranks."""
        n_steps = int(self.tally.asnumpy()[1])
        self.tally = _nothing()
        return n_steps


def _nothing() -> Tensor:
    return Tensor(np.zeros(2, np.float32))


def _small(value: Tensor) -> Tensor:
    """Return a small tensor as a vector, or a large one's first number, as a placeholder that nobody reads."""
    return value.reshape((-1,))[: _size_if_small(value)]


def _size_if_small(value: Tensor) -> int:
    return value.size if value.size <= _SMALL else 1


@ops.constexpr
def _firsts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(sizes[:-1], initial=0))
