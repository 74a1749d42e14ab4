"""One state for all ranks: read by path where a rank finds rank 0's very file, sent by rank 0 where it does not."""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from dimred.distributed.ranks import Ranks
from dimred.run.states import RunState, RunStates, read_state

__all__ = ["state_of_first"]

_PIECE = 1 << 24  # bytes told at once; on the way each is a float32


def state_of_first(states: RunStates, ranks: Ranks, note: Callable[[str], None]) -> RunState | None:
    """The newest state that rank 0 finds, on every rank; None where it finds none.

    Args:
        states: of this rank; rank 0's count.
        ranks: all of them call this.
        note: see ``RunStates.newest``.

    Raises:
        CheckpointError: what arrived is damaged.
    """
    found = ranks.run_on_rank_zero(lambda: states.newest(note))
    if ranks.group_size == 1:
        return found
    path = Path(ranks.broadcast_bytes(str(found.path.absolute()).encode() if found else b"").decode())
    if not path.name:
        return None
    wanted = ranks.broadcast_bytes(ranks.run_on_rank_zero(lambda: _digest(path)) or b"")
    if found is None and _digest(path) == wanted:
        found = read_state(path)
    return _send(path, found, ranks) if ranks.any(found is None) else found


def _digest(path: Path) -> bytes:
    """Of the file; empty where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b""


def _send(path: Path, found: RunState | None, ranks: Ranks) -> RunState:
    """Rank 0's file in pieces; a rank that has no state yet reads its copy, and forgets it."""
    with tempfile.TemporaryDirectory(prefix="dimred-") as folder:
        copy = Path(folder) / path.name
        with path.open("rb") if ranks.is_rank_zero else copy.open("wb") as file:
            while piece := ranks.broadcast_bytes(file.read(_PIECE) if ranks.is_rank_zero else b""):
                if not ranks.is_rank_zero:
                    file.write(piece)
        return found or read_state(copy)._replace(path=path)
