"""Read one file on all ranks, each under the same path."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dimred.distributed.ranks import Ranks
from dimred.errors import DimredError
from dimred.io.checksums import sample_digest


def share(original: Any, ranks: Ranks, read: Callable[[Path], Any]) -> Any:
    """Read the file that rank 0 has read on every rank; all ranks call this.

    Args:
        original: on rank 0, what it has read, an object whose ``path`` is the file, or None; on the other ranks, None.
        ranks: the ranks of the job.
        read: returns the content of a file, like ``original``; called on the other ranks with rank 0's path.

    Returns:
        The content on every rank, or None on every rank.

    Raises:
        DimredError: on every rank, if one of them can't read the file or has a different one under that path.
    """
    if ranks.group_size == 1:
        return original
    path = Path(ranks.broadcast_bytes(b"" if original is None else str(original.path.absolute()).encode()).decode())
    if not path.name:
        return None

    def content() -> Any:
        try:
            return read(path) if original is None else original
        except (DimredError, OSError) as error:
            message = f"all hosts must have {path}, on a shared disk or as copies under the same path: {error}"
            raise DimredError(message) from error

    here = ranks.run_together(content)
    ranks.check_same(f"file {path}", sample_digest(path).encode())
    return here
