"""One family of errors.

Every message names the argument as the user typed it, the value received, what is allowed, and what to do next.
"""

__all__ = [
    "BasisMismatchError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DimredError",
    "NothingAcceptedError",
    "SearchError",
    "SeriesError",
]


class DimredError(Exception):
    """Base of every error that dimred raises on purpose; the command line prints it without a traceback."""


class ConfigError(DimredError, ValueError):
    """An argument, option or configuration key has a value that is not allowed."""


class DataError(DimredError):
    """A data folder is missing, empty, or not what it is said to be."""


class CheckpointError(DimredError):
    """A checkpoint file is missing, truncated, damaged, or not a checkpoint."""


class SeriesError(DimredError):
    """A series of snapshots can't be used as asked: too few, inconsistent, or no snapshots at all."""


class BasisMismatchError(DimredError):
    """A basis does not belong to the network, the layout, or the options it meets."""


class SearchError(DimredError):
    """A search that can't go on as it is."""


class NothingAcceptedError(SearchError):
    """No step was accepted for too long."""
