"""Which columns of a basis a rank owns."""

from dimred.errors import ConfigError

__all__ = ["columns_of_rank"]


def columns_of_rank(n_columns: int, rank: int, group_size: int) -> slice:
    """The columns that ``rank`` owns: ``floor(rank M / R) : floor((rank + 1) M / R)``.

    The slices of all ranks follow each other, cover every column once, and differ in length by at most one; the
    longest has ``ceil(M / R)``. Any M and any R go together; with R > M some ranks own nothing.

    Args:
        n_columns: M, columns in all.
        rank: 0 to R - 1.
        group_size: R, ranks in all.

    Raises:
        ConfigError: a number is out of range.
    """
    if n_columns < 0 or group_size < 1 or not 0 <= rank < group_size:
        raise ConfigError(
            f"rank {rank} of group_size {group_size} can't own a part of {n_columns} columns; rank must be 0 to "
            "group_size - 1."
        )
    return slice(rank * n_columns // group_size, (rank + 1) * n_columns // group_size)
