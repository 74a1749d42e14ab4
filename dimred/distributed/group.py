"""The ranks of a data-parallel job with several processes, and their collectives.

On CPU, MindSpore's collectives can only sum float32 numbers, and fail if a rank is more than 30 seconds late.
So work for one rank alone goes through ``run_on_rank_zero``, where the others wait in many short turns.
"""

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.distributed.in_step import AllReduce, Ballot, FusedAllReduce
from dimred.distributed.ranks import Intent, Ranks, Result, as_ours
from dimred.errors import ConfigError, DataError, DimredError, FaultError
from dimred.io.checksums import sample_digest

_LONGEST_TURN_SECONDS = 0.5
_LONGEST_REASON = 1_000  # bytes of a fault's text sent to the other ranks
_KINDS = (DataError, FaultError, DimredError)


class Group(Ranks):
    """The ranks of a job with several processes; all must call the same methods in the same order. See ``Ranks``.

    Args:
        rank: the number of this process.
        group_size: the number of ranks.
        splits: indices of the gradients that end a fused all-reduce; empty to fuse none.
    """

    def __init__(self, rank: int, group_size: int, splits: Sequence[int] = ()):
        self.rank = rank
        self.group_size = group_size
        self._splits = splits
        self._sum = AllReduce(1.0)

    def mean(self, n_gradients: int = 0) -> nn.Cell:
        factor = 1.0 / self.group_size
        if not self._splits or not n_gradients:
            return AllReduce(factor)
        if any(split >= following for split, following in pairwise((*self._splits, n_gradients))):
            raise ConfigError(
                f"all_reduce_split is {list(self._splits)}; give increasing numbers of the network's gradients, up to "
                f"{n_gradients - 1}, or [] to fuse none",
                argument="all_reduce_split",
            )
        return FusedAllReduce(factor, self._splits)

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
        total = self.sum(_flat(parameters) / np.float32(self.group_size))
        first = 0
        for parameter in parameters:
            _put(parameter, total[first : first + parameter.size].reshape(parameter.shape))
            first += parameter.size

    def broadcast(self, parameters: Sequence[Parameter]) -> None:
        values = [parameter.asnumpy() for parameter in parameters]
        message = self.broadcast_bytes(b"".join(value.tobytes() for value in values))
        first = 0
        for parameter, value in zip(parameters, values, strict=True):
            new_value = np.frombuffer(message, value.dtype, value.size, first).reshape(value.shape)
            _put(parameter, new_value)
            first += new_value.nbytes

    def separate_masks(self, network: nn.Cell) -> None:
        if self.is_rank_zero:
            return
        seed = int(np.random.default_rng([ms.get_seed() or 0, self.rank]).integers(1, 2**31 - 1))
        of_numpy = np.random.get_state()  # noqa: NPY002  (MindSpore's seed is NumPy's, too)
        ms.set_seed(seed)  # for functions: they get their seeds when a graph is compiled
        np.random.set_state(of_numpy)  # noqa: NPY002  (a user's code draws the same on all ranks)
        for _, cell in network.cells_and_names():
            if isinstance(cell, nn.Dropout):  # its kernel got the seed of all ranks when the cell was made
                cell.dropout.Seed0 = seed

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
        result = None
        fault = None
        try:
            result = work()
        except Exception as error:
            fault = error
        fault_of_all = self.first_fault(fault)
        first = fault or fault_of_all
        if first is not None:
            raise first
        return cast(Result, result)

    def run_on_rank_zero(self, work: Callable[[], Result]) -> Result | None:
        """Run ``work`` in a thread on rank 0; the ranks meet in short turns until it is done."""
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
                return outcome.result()  # raises what the work raised
            if any_done:
                return None
            pause = min(2 * pause, _LONGEST_TURN_SECONDS)
            if not self.is_rank_zero:
                time.sleep(pause / 2)

    def first_fault(self, fault: BaseException | None) -> DimredError | None:
        faults = np.zeros(self.group_size)
        faults[self.rank] = fault is not None
        faults = self.sum(faults)
        if not faults.any():
            return None
        first = int(np.argmax(faults))
        message = np.zeros(1 + _LONGEST_REASON)
        if fault is not None and first == self.rank:
            ours = as_ours(fault)
            text = str(ours).encode()[:_LONGEST_REASON]
            message[: 1 + len(text)] = [next(n for n, kind in enumerate(_KINDS) if isinstance(ours, kind)), *text]
        kind, *characters = self.sum(message).astype(np.uint8)
        reason = bytes(characters).rstrip(b"\0").decode(errors="replace")
        return _KINDS[kind](f"rank {first} could not continue: {reason}")

    def check_same(self, name: str, content: bytes) -> None:
        digest = np.frombuffer(hashlib.sha256(content).digest(), np.uint8).astype(np.float32)
        if self.any(not np.array_equal(self.sum(digest), digest * self.group_size)):
            raise DimredError(
                f"the ranks do not have the same {name}; give every host the same files and the same options"
            )

    def share(self, original: Any, read: Callable[[Path], Any]) -> Any:
        path = Path(self.broadcast_bytes(b"" if original is None else str(original.path.absolute()).encode()).decode())
        if not path.name:
            return None

        def content() -> Any:
            try:
                return read(path) if original is None else original
            except (DimredError, OSError) as error:
                message = f"all hosts must have {path}, on a shared disk or as copies under the same path: {error}"
                raise DimredError(message) from error

        here = self.run_together(content)
        self.check_same(f"file {path}", sample_digest(path).encode())
        return here


def _pieces(message: bytes) -> np.ndarray:
    """Return bytes as 16-bit numbers in float32, (n,); the sum over the ranks is exact, as all others add zeros."""
    return np.frombuffer(message + bytes(len(message) % 2), np.uint16).astype(np.float32)


def _put(parameter: Parameter, values: np.ndarray) -> None:
    ops.assign(parameter, Tensor(values, parameter.dtype))  # in place, because compiled graphs know this memory


def _flat(parameters: Sequence[Parameter]) -> np.ndarray:
    """Return the parameters' values as one float32 vector, with a 0 at its end so that it is never empty."""
    return np.concatenate(
        [*(parameter.asnumpy().astype(np.float32).ravel() for parameter in parameters), [0]], dtype=np.float32
    )
