"""The result of a search step, and what the search remembers between steps."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor

_DIRECTION = "direction."


class Outcome(Enum):
    """The way a search step ended; the value is the word in its record."""

    ACCEPTED = "accepted"
    """A trial was accepted."""
    NO_DECREASE = "no_decrease"
    """No trial was accepted; inside the subspace the weights stay where they were."""
    NON_FINITE_GRADIENT = "non_finite_gradient"
    """The loss or its gradient was not finite; the whole step was skipped."""


class SearchResult(NamedTuple):
    """The outcome of one step; ``loss`` comes first, where MindSpore's callbacks look for it.

    Attributes:
        loss: Tensor () float32, f(w; B) before the step.
        loss_after: f at the accepted point w + t d on the same batch, before the step outside the subspace; equals
            ``loss`` if nothing was accepted.
        outcome: how the step ended.
        subspace_step: t d_k, (k,) float64; zeros if nothing was accepted.
        seconds: wall seconds of each part of the step, by the part's name.
        step_size: the accepted t; 0.0 if nothing was accepted.
        n_trials: step sizes tried.
        n_forward, n_backward: passes over the batch for the gradient and the line search. The forward passes that check
            whether the loss can be repeated are not counted.
        slope: g_k' d_k, the directional derivative (negative on a descent direction); nan on a skipped step.
        curvature: the product s'y of the pair that was considered; nan without a pair.
        pair_used: whether that pair updated the inverse Hessian.
        condition: condition number of the inverse Hessian that gave the direction; nan without one.
        captured_fraction: |g_k|^2 / |g|^2, the fraction of the gradient inside the subspace; nan if skipped or g = 0.
        moved_inside: |t d|, the distance moved inside the subspace.
        moved_outside: the distance that the step outside the subspace moved; for the published one, |alpha m|.
        grad_norm: |g| before clipping; nan on a skipped step.
        telemetry: the numbers that the step's parts report, by name, as for ``StepResult``.
    """

    loss: Any
    loss_after: float
    outcome: Outcome
    subspace_step: np.ndarray
    seconds: dict[str, float]
    step_size: float = 0.0
    n_trials: int = 0
    n_forward: int = 0
    n_backward: int = 0
    slope: float = math.nan
    curvature: float = math.nan
    pair_used: bool = False
    condition: float = math.nan
    captured_fraction: float = math.nan
    moved_inside: float = 0.0
    moved_outside: float = 0.0
    grad_norm: float = math.nan
    telemetry: Mapping[str, float] = MappingProxyType({})

    def __repr__(self) -> str:
        """Describe the step in one line."""
        return (
            f"SearchResult({self.outcome.value}: loss {float(self.loss):.4g} -> {self.loss_after:.4g}, step "
            f"{self.step_size:.3g}, {self.n_trials} trials, moved {self.moved_inside:.3g} inside the subspace, "
            f"{self.moved_outside:.3g} outside)"
        )

    @property
    def accepted(self) -> bool:
        """Return whether a trial was accepted."""
        return self.outcome is Outcome.ACCEPTED

    def record(self) -> dict[str, Any]:
        """Return a record for ``metrics.jsonl``, with plain numbers and texts."""
        record = self._asdict()
        telemetry = dict(record.pop("telemetry"))
        record |= {"loss": float(self.loss.asnumpy()), "outcome": self.outcome.value}
        return record | {"subspace_step": self.subspace_step.tolist()} | telemetry


def search_line(records: Sequence[Mapping[str, Any]]) -> str:
    """Describe the steps with these records in one line; see ``SearchResult.record``."""
    fractions = np.array([record["captured_fraction"] for record in records], dtype=float)
    fractions = fractions[np.isfinite(fractions)]  # a skipped step has none
    inside = f"{100 * fractions.mean():.1f} %" if fractions.size else "unknown"
    sums = totals(records)
    return (
        f"  accepted {sums['accepted_steps']} of {len(records)} steps, {sums['trials'] / len(records):.1f} trials a "
        f"step; {inside} of the gradient inside the subspace; moved {sums['moved_inside']:.3g} inside it, "
        f"{sums['moved_outside']:.3g} outside"
    )


def totals(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Add up a search's records: accepted steps, trials, passes, and distances moved.

    A total distance is NaN if any step's distance was not finite; that step's record has None for it.
    """
    sums = dict.fromkeys(("accepted_steps", "trials", "n_forward", "n_backward"), 0)
    distances = dict.fromkeys(("moved_inside", "moved_outside"), 0.0)
    for record in records:
        sums["accepted_steps"] += record["outcome"] == "accepted"
        sums["trials"] += record["n_trials"]
        for name in ("n_forward", "n_backward"):
            sums[name] += record[name]
        for name in distances:
            distances[name] += math.nan if record[name] is None else record[name]
    return {**sums, **distances}


class SearchMemory(NamedTuple):
    """The search's state between steps; a run resumed from it continues as if it had not stopped.

    Attributes:
        direction: the ``Direction``'s state (for BFGS: H, and the last accepted step's s and g_k).
        residual_momentum: m of ``ResidualMomentum``, Tensor (M,) float32; None before its first step, or without it.
        n_steps: steps taken, skipped ones included.
        n_rejected_in_a_row: steps since the last accepted one.
    """

    direction: Any
    residual_momentum: Tensor | None = None
    n_steps: int = 0
    n_rejected_in_a_row: int = 0

    def after(self, accepted: bool, **changes: Any) -> "SearchMemory":
        """Return the memory after one more step.

        Args:
            accepted: whether a trial was accepted.
            changes: new field values, by name.
        """
        in_a_row = 0 if accepted else self.n_rejected_in_a_row + 1
        return self._replace(n_steps=self.n_steps + 1, n_rejected_in_a_row=in_a_row, **changes)


def memory_arrays(memory: SearchMemory) -> dict[str, np.ndarray]:
    """Turn the memory into named arrays for a file, without the fields that are None."""
    fields = memory._asdict()
    fields |= {_DIRECTION + name: value for name, value in fields.pop("direction")._asdict().items()}
    if memory.residual_momentum is not None:
        fields["residual_momentum"] = memory.residual_momentum.asnumpy()
    return {name: np.array(value) for name, value in fields.items() if value is not None}


def memory_from_arrays(arrays: Mapping[str, np.ndarray], like: SearchMemory) -> SearchMemory | None:
    """Rebuild the memory that ``memory_arrays`` took apart, to the last bit.

    Args:
        arrays: the arrays, by the names that ``memory_arrays`` gave them.
        like: any memory of the same search, such as its first.

    Returns:
        The memory; None if the arrays come from a different direction rule or a different k.
    """
    values = {name.removeprefix(_DIRECTION): arrays[name] for name in arrays if name.startswith(_DIRECTION)}
    first = {name: np.shape(value) for name, value in like.direction._asdict().items() if value is not None}
    has_fields = first.keys() <= values.keys() <= {*like.direction._fields}
    if not has_fields or any(values[name].shape != shape for name, shape in first.items()):
        return None
    fields = {name: _as_before(arrays.get(name)) for name in like._fields}
    fields["direction"] = like.direction._make(_as_before(values.get(name)) for name in like.direction._fields)
    if fields["residual_momentum"] is not None:
        fields["residual_momentum"] = Tensor(fields["residual_momentum"])
    return SearchMemory(**fields)


def _as_before(value: np.ndarray | None) -> Any:
    """Turn an array without dimensions back into the plain number that it was."""
    return value.item() if value is not None and value.ndim == 0 else value


class Clock:
    """A clock that records in ``laps`` the wall seconds that each part of a step took."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Record the time since the last call under ``part``."""
        now = time.perf_counter()
        self.laps[part] = now - self._last
        self._last = now
