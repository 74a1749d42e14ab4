"""The configuration of the task that trains in milliseconds, with names that files of ``golden`` hold."""

from typing import Any

from dimred.proof.task import N_CLASSES, N_FEATURES, Points, network  # noqa: F401

TASK: dict[str, Any] = {
    "seed": 3,
    "model": {"name": "tests.helpers.tiny_task:network", "n_classes": N_CLASSES},
    "data": {"dataset": "tests.helpers.tiny_task:Points", "batch_size": 6, "workers": 1},
    "reestimate_batches": 1,
}
"""Keys that the configurations of both stages share."""
