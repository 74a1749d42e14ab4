"""How many snapshots a basis needs."""

from pathlib import Path

from dimred.errors import SeriesError

__all__ = ["check_enough"]


def check_enough(n_snapshots: int, n_components: int | float, kind: str, folder: Path, n_bad: int = 0) -> None:
    """Check that there are k snapshots, and for ``pca`` one more, which goes into the mean.

    Raises:
        SeriesError: there are fewer.
    """
    needed = 2 if isinstance(n_components, float) else n_components + (kind == "pca")
    if n_snapshots < needed:
        left_out = f" ({n_bad} bad ones left out)" if n_bad else ""
        raise SeriesError(
            f"n_components is {n_components}, which needs at least {needed} snapshots; {folder} gives "
            f"{n_snapshots}{left_out}. Save more snapshots in stage 1, select fewer away, or ask for n_components = "
            f"{max(n_snapshots - (kind == 'pca'), 1)} or fewer."
        )
