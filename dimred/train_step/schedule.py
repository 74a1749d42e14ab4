"""Make learning-rate schedules with one rate per update."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dimred.curves import CURVES, CurveName


def make_rates(
    name: Literal[CurveName, "step", "constant"],
    peak: float,
    warmup_steps: int,
    total_steps: int,
    milestones: Sequence[int] = (),
    step_factor: float = 0.1,
) -> np.ndarray:
    """Make a schedule: linear from 0 to ``peak`` over the warm-up, then as ``name`` says.

    With x = (i - warmup) / (total - warmup)::

        rate(i) = peak (i + 1) / warmup       for i < warmup
        a curve:  peak CURVES[name](x)
        step:     peak step_factor^(number of milestones at or before i)
        constant: peak

    Args:
        name: a name of ``CURVES``, which fall from 1 to 0 as x goes from 0 to 1; ``step``; or ``constant``.
        peak: largest rate, above 0.
        warmup_steps: updates in the warm-up; 0 for none.
        total_steps: updates in the whole schedule; more than ``warmup_steps``.
        milestones: for ``step``: updates after which the rate falls.
        step_factor: for ``step``: factor by which the rate falls at each milestone, between 0 and 1.

    Returns:
        The rates, (total_steps,) float32.
    """
    step = np.arange(total_steps)
    warmup = (step + 1) / max(warmup_steps, 1)
    if name == "step":
        fraction = step_factor ** np.searchsorted(np.sort(milestones), step, side="right").astype(np.float64)
    elif name == "constant":
        fraction = np.ones(total_steps)
    else:
        x = (step - warmup_steps) / (total_steps - warmup_steps)
        fraction = CURVES[name](np.maximum(x, 0))
    return (peak * np.where(step < warmup_steps, warmup, fraction)).astype(np.float32)


def with_cooldown(rates: np.ndarray, after_step: int, n_steps: int, curve: CurveName = "linear") -> np.ndarray:
    """Cut a schedule after ``after_step`` updates, and lower the next rate to 0 over ``n_steps`` more.

    rate(after_step + i) = rates[after_step] CURVES[curve](i / n_steps)   for 0 <= i < n_steps

    Args:
        rates: a whole schedule, (total_steps,), with total_steps above ``after_step``.
        after_step: updates before the cooldown.
        n_steps: updates in the cooldown.
        curve: a name of ``CURVES``.

    Returns:
        The rates, (after_step + n_steps,) float32.
    """
    fractions = CURVES[curve](np.arange(n_steps) / n_steps)
    return np.concatenate([rates[:after_step], rates[after_step] * fractions]).astype(np.float32)
