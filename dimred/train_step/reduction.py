"""What one process found becomes what all ranks found together."""

from dimred.distributed.ranks import KeepLocal

__all__ = ["KeepLocal"]
