"""One basis for all ranks: read by path where a rank finds the file, sent by rank 0 where it does not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dimred.distributed.ranks import Ranks, columns_of_rank
from dimred.errors import DimredError
from dimred.search.basis_check import Basis

Found = TypeVar("Found", bound=Basis)


class ReceivedBasis(NamedTuple):
    """What a rank without the file gets of the basis.

    Attributes:
        components: (k, M) float32, in which only this rank's columns are set (and take memory).
        explained_variance: (k,) float64, where the file has it.
        layout: not sent; rank 0 has checked it.
    """

    components: np.ndarray
    explained_variance: np.ndarray | None
    layout: Any = None


def share_basis(basis: Found | None, path: Path | None, ranks: Ranks, read: Callable[[Path], Found]) -> Basis:
    """The basis of rank 0 on every rank.

    Args:
        basis: rank 0's; None elsewhere.
        path: its file on rank 0; None elsewhere.
        ranks: all of them call this.
        read: opens the file; called on the other ranks, where there is one of that name.

    Raises:
        DimredError: another rank's file of that name is another one.
    """
    if ranks.group_size == 1 and basis is not None:
        return basis
    about = ranks.broadcast_bytes(_about(basis, path) if basis is not None else b"")
    said = json.loads(about)
    own = basis
    if own is None and said["path"] is not None and Path(said["path"]).is_file():
        own = read(Path(said["path"]))
    if ranks.any(own is not None and _about(own, said["path"]) != about):
        raise DimredError(f"{said['path']} is another basis on another host; give all hosts the same file, or none")
    if not ranks.any(own is None):
        return own  # type: ignore[return-value]
    return _send(own, said, ranks)


def _about(basis: Basis, path: Any) -> bytes:
    """What two ranks compare: the shape, a few columns, and what the rows explain."""
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


def _send(own: Basis | None, said: dict[str, Any], ranks: Ranks) -> Basis:
    """Row after row from rank 0, of which each rank without the file keeps its own columns."""
    n_components, n_weights = said["shape"]
    columns = columns_of_rank(n_weights, ranks.rank, ranks.group_size)
    kept = np.zeros((n_components, n_weights), np.float32)  # pages that nothing is written to take no memory
    for index in range(n_components):
        row = np.zeros(n_weights, np.float32)
        if ranks.is_rank_zero and own is not None:
            row[:] = own.components[index]
        received = ranks.sum(row)
        if own is None:
            kept[index, columns] = received[columns]
    if own is not None:
        return own
    variance = said["explained_variance"]
    return ReceivedBasis(kept, None if variance is None else np.array(variance))
