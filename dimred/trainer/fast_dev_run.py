"""A run made as short as it can be, to see on the user's own data and network whether the whole one would work."""

from collections.abc import Mapping
from typing import Any, TypeVar

from dimred.config import StageConfig, StageOneConfig
from dimred.data.batches import Batches

Settings = TypeVar("Settings", bound=StageConfig)


def shortened(settings: Settings, images: Mapping[str, Batches]) -> tuple[Settings, dict[str, Batches]]:
    """Return settings and splits of a run of one step that goes through every phase of the whole run.

    With ``stop`` a run of stage 1 makes two, because an average needs two snapshots.

    Args:
        settings: checked, and used for the step already: a schedule can't be as short as that.
        images: split -> its batches.
    """
    changes: dict[str, Any] = {"epochs": 1, "reestimate_batches": 1}
    if isinstance(settings, StageOneConfig):
        snapshots = settings.snapshots.model_copy(update={"per_epoch": 1, "first_epoch": 1})
        changes |= {"snapshots": snapshots, "evaluate_every": 1}
        if settings.stop is not None:
            changes |= {"epochs": 2, "stop": settings.stop.model_copy(update={"every_epochs": 1})}
    return settings.model_copy(update=changes), {split: part.shortened(1) for split, part in images.items()}
