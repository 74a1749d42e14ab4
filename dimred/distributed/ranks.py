"""The interface to the ranks of a data-parallel job, and the single-process implementation."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from mindspore import Parameter, nn

from dimred.distributed.in_step import Ballot
from dimred.errors import DimredError, FaultError
from dimred.io.atomic import describe_os_error

Result = TypeVar("Result")


class Intent(IntEnum):
    """A rank's next action in a loop over batches. If ranks differ, the highest wins."""

    STEP = 0
    """Take the next step."""
    STOP = 1
    """Leave the loop: a signal asked for it."""
    FAIL = 2
    """Leave the loop: this rank can't continue, for example because it can't read its next image."""


class Ranks:
    """The only rank of a single-process job, where every value stays as it is; ``Group`` is for several ranks.

    Attributes:
        rank: number of this process, from 0.
        group_size: number of processes, R.
    """

    rank = 0
    group_size = 1

    @property
    def is_rank_zero(self) -> bool:
        """Return whether this is rank 0, the rank that writes the files."""
        return self.rank == 0

    def mean(self, n_gradients: int = 0) -> nn.Cell | None:
        """Return a cell that maps float32 tensors to a tuple of their means over all ranks; None for one process.

        Args:
            n_gradients: how many of the first tensors are gradients; these may be fused in groups.

        Raises:
            ConfigError: ``all_reduce_split`` has an index beyond the last gradient.
        """
        return None

    def ballot(self) -> Ballot | None:
        """Return a new ballot, for a step that needs every rank's vote; None for one process."""
        return None

    def sum(self, numbers: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the sum over all ranks, float32, the same on each; whole numbers are exact below 2^24."""
        return np.asarray(numbers, np.float32)

    def all_reduce_mean(self, parameters: Sequence[Parameter]) -> None:
        """Set float parameters to their mean over all ranks, on each rank."""

    def broadcast(self, parameters: Sequence[Parameter]) -> None:
        """Set parameters of any type to rank 0's values, bit for bit, on each rank."""

    def separate_masks(self, network: nn.Cell) -> None:
        """Let MindSpore draw different dropout masks on each rank; rank 0 draws the same masks as a single process.

        All ranks build a network under one seed, to begin with the same weights; without this call their masks would
        be the same too.

        Args:
            network: the network, before its first call.
        """

    def gather(self, numbers: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return all ranks' numbers, bit for bit, the same on each: (R, n) float64, row r from rank r.

        Adding them up is exact for whole numbers up to 2^53; ``sum`` has too few digits for that.
        """
        return np.array(numbers, np.float64)[None]

    def run_on_rank_zero(self, work: Callable[[], Result]) -> Result | None:
        """Run ``work`` on rank 0, however long it takes, while the others wait.

        ``work`` may not call a cell: it runs in a separate thread, and MindSpore crashes if two threads compile.

        Returns:
            The result on rank 0, None elsewhere.

        Raises:
            DimredError: ``work`` failed. Rank 0 raises the original error, of whatever type; the others raise the error
                from ``first_fault``, with the reason.
        """
        return work()

    def run_together(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` on every rank, and return its result; if it fails on one, all ranks raise.

        ``work`` may not call a collective.

        Raises:
            DimredError: ``work`` failed. A rank where it failed raises the original error, of whatever type; the others
                raise the error from ``first_fault``.
        """
        return work()

    def first_fault(self, fault: BaseException | None) -> DimredError | None:
        """Return, on every rank, an error that describes the first failing rank's fault; None if no rank failed.

        A DataError stays a DataError on every rank, a file or disk fault becomes a FaultError, and any other fault a
        DimredError.

        Args:
            fault: the error that this rank failed with; None if it did not fail.
        """
        return None if fault is None else as_ours(fault)

    def any(self, claim: bool) -> bool:
        """Return whether the claim is true on any rank; every rank gets the same answer."""
        return bool(self.sum([float(claim)])[0])

    def agree(self, intent: Intent) -> Intent:
        """Return the highest intent among all ranks, the same on each, by one all-reduce of three numbers.

        Every rank must call this, even one that has just failed. Then all of them leave a loop at the same place, and
        none waits in a collective that another never enters. The host waits for the answer; see ``Ballot`` for a vote
        that travels inside a step.
        """
        return intent

    def broadcast_bytes(self, message: bytes) -> bytes:
        """Return rank 0's message on every rank."""
        return message

    def check_same(self, name: str, content: bytes) -> None:
        """Check that all ranks have the same content.

        The R ranks' digests add up to R times each digest only if all of them are equal.

        Args:
            name: what the message calls the content, such as ``configuration``.
            content: this rank's content.

        Raises:
            DimredError: on every rank, if the content differs on any; the message has ``name``.
        """

    def share(self, original: Any, read: Callable[[Path], Any]) -> Any:
        """Let every other rank read the file that rank 0 has read, under the same path.

        Args:
            original: on rank 0, the object that it has read, with the file as its ``path``, or None; on others, None.
            read: returns a file's content as an object like ``original``; called on the other ranks with rank 0's path.

        Returns:
            The content on every rank, or None on every rank.

        Raises:
            DimredError: on every rank, if one of them can't read the file or has a different file under that path.
        """
        return original


ALONE = Ranks()


def as_ours(fault: BaseException) -> DimredError:
    """Convert a fault to the error that the other ranks get."""
    if isinstance(fault, OSError):
        return FaultError(describe_os_error(fault))
    return fault if isinstance(fault, DimredError) else DimredError(repr(fault))
