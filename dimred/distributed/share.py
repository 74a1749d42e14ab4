"""What rank 0 has read from a file, on every rank: read by path where a rank finds the same file, otherwise sent."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from dimred.distributed.ranks import Ranks, columns_of_rank
from dimred.errors import DimredError
from dimred.subspace.basis import SubspaceBasis

_CHUNK = 1 << 24  # bytes of a file that are sent at once; each travels as a float32


class _State(Protocol):
    """What was read from a file, with the path of it; a ``NamedTuple``."""

    @property
    def path(self) -> Path: ...
    def _replace(self, *, path: Path) -> Any: ...


State = TypeVar("State", bound=_State)


def share_basis(basis: SubspaceBasis | None, ranks: Ranks, read: Callable[[Path], SubspaceBasis]) -> SubspaceBasis:
    """Rank 0's basis on every rank; all of them call this.

    A rank that does not have the file gets its own columns of the rows (the others are 0 and take no memory), and the
    explained variance; rank 0 has checked the layout.

    Args:
        basis: rank 0's; None elsewhere.
        read: opens a basis; called on the other ranks with rank 0's path, where there is such a file.

    Raises:
        DimredError: on every rank, where a file of that name holds another basis.
    """
    if ranks.group_size == 1 and basis is not None:
        return basis
    summary = ranks.broadcast_bytes(b"" if basis is None else _summary(basis, basis.path))
    path, own = json.loads(summary)["path"], basis
    if own is None and path is not None and Path(path).is_file():
        own = read(Path(path))
    if ranks.any(own is not None and _summary(own, path) != summary):
        raise DimredError(f"{path} is another basis on another host; give all hosts the same file, or none")
    if not ranks.any(own is None):
        return own  # type: ignore[return-value]
    received = _send_rows(own, json.loads(summary), ranks)
    return received if own is None else own


def _summary(basis: SubspaceBasis, path: Path | str | None) -> bytes:
    """What two ranks compare: the shape, a few columns, the explained variance."""
    variance = basis.explained_variance
    sample = basis.components[:, :: max(1, basis.components.shape[1] // 64)]
    return json.dumps(
        {
            "path": None if path is None else str(path),
            "shape": basis.components.shape,
            "explained_variance": None if variance is None else np.asarray(variance).tolist(),
            "sample": sample.astype(np.float64).tolist(),
        }
    ).encode()


def _send_rows(own: SubspaceBasis | None, summary: dict[str, Any], ranks: Ranks) -> SubspaceBasis:
    """Send rank 0's rows one by one; a rank without the file keeps its own columns of each."""
    n_components, n_weights = summary["shape"]
    columns = columns_of_rank(n_weights, ranks.rank, ranks.group_size)
    kept = np.zeros((n_components, n_weights), np.float32)  # pages that are never written take no memory
    for index in range(n_components):
        row = np.zeros(n_weights, np.float32)
        if ranks.is_rank_zero and own is not None:
            row[:] = own.components[index]
        received = ranks.sum(row)
        if own is None:
            kept[index, columns] = received[columns]
    variance = summary["explained_variance"]
    return SubspaceBasis(kept, explained_variance=None if variance is None else np.array(variance))


def share_state(state: State | None, ranks: Ranks, read: Callable[[Path], State]) -> State | None:
    """Rank 0's state on every rank; None where rank 0 has none; all of them call this.

    Args:
        state: rank 0's; None elsewhere.
        read: reads a state; called on the other ranks with rank 0's path, or with a copy of that file.

    Raises:
        CheckpointError: what arrived is damaged.
    """
    if ranks.group_size == 1:
        return state
    path = Path(ranks.broadcast_bytes(b"" if state is None else str(state.path.absolute()).encode()).decode())
    if not path.name:
        return None
    digest = ranks.broadcast_bytes(ranks.run_on_rank_zero(lambda: _digest(path)) or b"")
    if state is None and _digest(path) == digest:
        state = read(path)
    return _send_file(path, state, ranks, read) if ranks.any(state is None) else state


def _digest(path: Path) -> bytes:
    """SHA-256 of the file; empty where it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b""


def _send_file(path: Path, state: State | None, ranks: Ranks, read: Callable[[Path], State]) -> State:
    """Send rank 0's file; a rank without a state reads a temporary copy."""
    with tempfile.TemporaryDirectory(prefix="dimred-") as folder:
        copy = Path(folder) / path.name
        with path.open("rb") if ranks.is_rank_zero else copy.open("wb") as file:
            while chunk := ranks.broadcast_bytes(file.read(_CHUNK) if ranks.is_rank_zero else b""):
                if not ranks.is_rank_zero:
                    file.write(chunk)
        return state if state is not None else read(copy)._replace(path=path)
