"""The votes of the ranks on each step, which travel inside it."""

import numpy as np
from mindspore import Tensor


class Ballot:
    """A rank's vote on the steps, and what has become of them: a step is made only where every rank goes on.

    The step takes ``tally`` = (leave, made) and gives the next one, from the vote v_r of each rank r::

        leave <- 1 if sum_r max(leave, v_r) > 0 else 0;   made <- made + 1 - leave

    So once a rank votes to leave, no later step is made until the tally is counted, which waits for the device.

    Attributes:
        tally: (2,) float32, on the device. After a step it is the same on all ranks.
    """

    def __init__(self) -> None:
        self.tally = _nothing()

    def vote_to_leave(self) -> None:
        """Vote against the next step, and all later ones."""
        self.tally = self.tally + Tensor(np.array([1, 0], np.float32))

    def count(self) -> int:
        """Return how many steps were made since the last count, the same on all ranks."""
        made = int(self.tally.asnumpy()[1])
        self.tally = _nothing()
        return made


def _nothing() -> Tensor:
    return Tensor(np.zeros(2, np.float32))
