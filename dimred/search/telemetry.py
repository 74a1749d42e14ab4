"""The steps of a search as records, and an epoch of them for people."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dimred.search.result import SearchResult


def telemetry(found: SearchResult) -> dict[str, Any]:
    """A step as one record of ``metrics.jsonl``: the whole result, as numbers and words."""
    return found._asdict() | {
        "loss": float(found.loss.asnumpy()),
        "outcome": found.outcome.name.lower(),
        "subspace_step": found.subspace_step.tolist(),
    }


def epoch_line(records: Sequence[dict[str, Any]]) -> str:
    """An epoch in one line."""
    inside = np.array([record["captured_share"] for record in records], dtype=float)
    return (
        f"  accepted {_n_accepted(records)} of {len(records)} steps, "
        f"{np.mean([record['n_trials'] for record in records]):.1f} trials a step; "
        f"{100 * np.nanmean(inside):.1f} % of the gradient inside the subspace; moved "
        f"{sum(record['moved_inside'] for record in records):.3g} inside it, "
        f"{sum(record['moved_outside'] for record in records):.3g} outside"
    )


def totals(records: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Of a whole search: steps, accepted ones, trials, gradients."""
    return {
        "steps": len(records),
        "accepted_steps": _n_accepted(records),
        "trials": sum(record["n_trials"] for record in records),
        "gradients": sum(record["n_gradients"] for record in records),
    }


def _n_accepted(records: Sequence[dict[str, Any]]) -> int:
    return sum(record["outcome"] == "accepted" for record in records)
