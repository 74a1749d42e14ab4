"""A check's result, with its limit."""

from typing import NamedTuple


class Difference(NamedTuple):
    """How far a device's result is from the expected one.

    Attributes:
        name: what was compared.
        value: the largest difference, as a fraction of the largest expected number; NaN if the device gave one.
        limit: the largest value that a correct device gives.
    """

    name: str
    value: float
    limit: float

    @property
    def is_right(self) -> bool:
        """Return whether the difference is within its limit."""
        return self.value <= self.limit
