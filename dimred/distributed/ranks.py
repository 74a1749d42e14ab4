"""The ranks of a data-parallel job and their collectives.

On CPU, MindSpore's collectives can only sum float32 numbers, and fail if a rank is more than 30 seconds late.
So work that one rank does alone goes through ``run_on_rank_zero``, where the others wait in many short turns.
"""

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from enum import IntEnum
from typing import TypeVar, cast

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.distributed.in_step import AllReduce, Ballot
from dimred.errors import DataError, DimredError, FaultError
from dimred.io.atomic import describe_os_error

Result = TypeVar("Result")
_LONGEST_TURN_SECONDS = 0.5
_LONGEST_REASON = 1_000  # bytes of a fault's text that the other ranks get
_KINDS = (DataError, FaultError, DimredError)


class Intent(IntEnum):
    """The next action of a rank in a loop over batches. If ranks differ, the highest wins."""

    STEP = 0
    """Take the next step."""
    STOP = 1
    """Leave the loop: a signal asked for it."""
    FAIL = 2
    """Leave the loop: this rank can't go on, for example because it can't read its next image."""


class Ranks:
    """The ranks of a job that has only one process, so that every value stays as it is; ``Group`` is for several.

    Attributes:
        rank: number of this process, from 0.
        group_size: number of processes, R.
    """

    rank = 0
    group_size = 1

    @property
    def is_rank_zero(self) -> bool:
        """Return whether this is rank 0, which writes the files."""
        return self.rank == 0

    def mean(self) -> nn.Cell | None:
        """Return a cell that maps float32 tensors to a tuple of their means over all ranks; None for one process."""
        return None

    def ballot(self) -> Ballot | None:
        """Return a new ballot, for a step that is made only if every rank votes for it; None for one process."""
        return None

    def sum(self, numbers: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the sum over all ranks, float32, the same on each; whole numbers are exact below 2^24."""
        return np.asarray(numbers, np.float32)

    def all_reduce_mean(self, parameters: Sequence[Parameter]) -> None:
        """Set float parameters to their mean over all ranks, on each rank."""

    def broadcast(self, parameters: Sequence[Parameter]) -> None:
        """Set parameters of any type to rank 0's values, bit for bit, on each rank."""

    def gather(self, numbers: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the numbers of all ranks, bit for bit, the same on each: (R, n) float64, row r from rank r.

        Their sum is exact for whole numbers up to 2^53, for which ``sum`` has too few digits.
        """
        return np.array(numbers, np.float64)[None]

    def run_on_rank_zero(self, work: Callable[[], Result]) -> Result | None:
        """Run ``work`` on rank 0, however long it takes, while the others wait.

        ``work`` may not call a cell: it runs in a thread of its own, and MindSpore crashes if two threads compile.

        Returns:
            The result on rank 0, None elsewhere.

        Raises:
            DimredError: ``work`` failed. Rank 0 raises the error of ``work``, of whatever type; the others raise that
                of ``first_fault``, with the reason.
        """
        return work()

    def run_together(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` on every rank, and return its result; if it fails on one, all ranks raise, so that none waits.

        ``work`` may not call a collective.

        Raises:
            DimredError: ``work`` failed. A rank where it did raises that error, of whatever type; the others raise the
                error of ``first_fault``.
        """
        return work()

    def first_fault(self, fault: BaseException | None) -> DimredError | None:
        """Return, on every rank, an error that describes the fault of the first rank with one; None if there is none.

        A DataError stays a DataError on every rank, a fault of a file or a disk becomes a FaultError, and any other a
        DimredError.

        Args:
            fault: what this rank failed with; None if it did not fail.
        """
        faults = np.zeros(self.group_size)
        faults[self.rank] = fault is not None
        faults = self.sum(faults)
        if not faults.any():
            return None
        first, message = int(np.argmax(faults)), np.zeros(1 + _LONGEST_REASON)
        if fault is not None and first == self.rank:
            ours = _as_ours(fault)
            text = str(ours).encode()[:_LONGEST_REASON]
            message[: 1 + len(text)] = [next(n for n, kind in enumerate(_KINDS) if isinstance(ours, kind)), *text]
        kind, *characters = self.sum(message).astype(np.uint8)
        reason = bytes(characters).rstrip(b"\0").decode(errors="replace")
        return _KINDS[kind](f"rank {first} could not go on: {reason}")

    def any(self, claim: bool) -> bool:
        """Return whether the claim is true on any rank; every rank gets the same answer."""
        return bool(self.sum([float(claim)])[0])

    def agree(self, intent: Intent) -> Intent:
        """Return the highest intent of all ranks, the same on each, by one all-reduce of three numbers.

        Every rank must call this, even one that has just failed. Then all of them leave a loop at the same place, and
        none waits in a collective that another never enters. The host waits for the answer; see ``Ballot`` for a vote
        that travels inside a step.
        """
        return intent

    def broadcast_bytes(self, message: bytes) -> bytes:
        """Return rank 0's message on every rank."""
        return message

    def check_same(self, what: str, content: bytes) -> None:
        """Check that all ranks have the same content, by a digest: only then is the sum over the R ranks R times each.

        Args:
            what: what the content is, for the message, such as ``configuration``.
            content: this rank's content.

        Raises:
            DimredError: on every rank, if the content differs on any; the message names it by ``what``.
        """
        digest = np.frombuffer(hashlib.sha256(content).digest(), np.uint8).astype(np.float32)
        if self.any(not np.array_equal(self.sum(digest), digest * self.group_size)):
            raise DimredError(
                f"the ranks do not have the same {what}; give every host the same files and the same options"
            )


class Group(Ranks):
    """The ranks of a job of several processes, all of which call the same methods in the same order; see ``Ranks``."""

    def __init__(self, rank: int, group_size: int):
        self.rank = rank
        self.group_size = group_size
        self._sum = AllReduce(1.0)

    def mean(self) -> nn.Cell:
        return AllReduce(1.0 / self.group_size)

    def ballot(self) -> Ballot:
        return Ballot()

    def sum(self, numbers: Sequence[float] | np.ndarray) -> np.ndarray:
        (total,) = self._sum(Tensor(np.asarray(numbers, np.float32)))
        return np.asarray(total.asnumpy())

    def agree(self, intent: Intent) -> Intent:
        votes = np.zeros(len(Intent), np.float32)
        votes[intent] = 1
        return Intent(int(np.flatnonzero(self.sum(votes))[-1]))

    def all_reduce_mean(self, parameters: Sequence[Parameter]) -> None:
        total, first = self.sum(_flat(parameters) / np.float32(self.group_size)), 0
        for parameter in parameters:
            _put(parameter, total[first : first + parameter.size].reshape(parameter.shape))
            first += parameter.size

    def broadcast(self, parameters: Sequence[Parameter]) -> None:
        values = [parameter.asnumpy() for parameter in parameters]
        message, first = self.broadcast_bytes(b"".join(value.tobytes() for value in values)), 0
        for parameter, value in zip(parameters, values, strict=True):
            new_value = np.frombuffer(message, value.dtype, value.size, first).reshape(value.shape)
            _put(parameter, new_value)
            first += new_value.nbytes

    def gather(self, numbers: Sequence[float] | np.ndarray) -> np.ndarray:
        pieces = _pieces(np.array(numbers, np.float64).tobytes())
        of_all = np.zeros((self.group_size, len(pieces)), np.float32)
        of_all[self.rank] = pieces
        return self.sum(of_all).astype(np.uint16).view(np.float64)

    def broadcast_bytes(self, message: bytes) -> bytes:
        size = np.zeros(len(_pieces(bytes(8))), np.float32)
        if self.is_rank_zero:
            size[:] = _pieces(len(message).to_bytes(8, sys.byteorder))
        n_bytes = int.from_bytes(self.sum(size).astype(np.uint16).tobytes(), sys.byteorder)
        pieces = np.zeros(-(-n_bytes // 2), np.float32)
        if self.is_rank_zero:
            pieces[:] = _pieces(message)
        return self.sum(pieces).astype(np.uint16).tobytes()[:n_bytes] if n_bytes else b""

    def run_together(self, work: Callable[[], Result]) -> Result:
        result, fault = None, None
        try:
            result = work()
        except Exception as error:
            fault = error
        fault_of_all = self.first_fault(fault)
        if (first := fault or fault_of_all) is not None:
            raise first
        return cast(Result, result)

    def run_on_rank_zero(self, work: Callable[[], Result]) -> Result | None:
        """Run ``work`` in a thread of rank 0; the ranks meet in short turns until it is done."""
        outcome: Future[Result] = Future()

        def attempt() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        if self.is_rank_zero:
            threading.Thread(target=attempt, daemon=True).start()
        pause = 0.001
        while True:
            if self.is_rank_zero:
                wait([outcome], pause)
            is_done = outcome.done()  # true on rank 0 only
            error = outcome.exception() if is_done else None
            any_done, any_failed = self.sum([is_done, error is not None])
            if any_failed and (fault := self.first_fault(error)) and not is_done:
                raise fault
            if is_done:
                return outcome.result()  # or raises what the work raised
            if any_done:
                return None
            pause = min(2 * pause, _LONGEST_TURN_SECONDS)
            if not self.is_rank_zero:
                time.sleep(pause / 2)


ALONE = Ranks()


def _as_ours(fault: BaseException) -> DimredError:
    """Convert a fault to the error that the other ranks get."""
    if isinstance(fault, OSError):
        return FaultError(describe_os_error(fault))
    return fault if isinstance(fault, DimredError) else DimredError(repr(fault))


def _pieces(message: bytes) -> np.ndarray:
    """Cut bytes into numbers of 16 bits, float32 (n,); a sum in which all other ranks give zeros is exact."""
    return np.frombuffer(message + bytes(len(message) % 2), np.uint16).astype(np.float32)


def _put(parameter: Parameter, values: np.ndarray) -> None:
    ops.assign(parameter, Tensor(values, parameter.dtype))  # its own memory, which compiled graphs know


def _flat(parameters: Sequence[Parameter]) -> np.ndarray:
    """Return the parameters' values as one float32 vector, with a 0 at its end so that it is never empty."""
    return np.concatenate(
        [*(parameter.asnumpy().astype(np.float32).ravel() for parameter in parameters), [0]], dtype=np.float32
    )
