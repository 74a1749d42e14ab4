"""Make learning-rate schedules, with one number for each update."""

from collections.abc import Callable, Sequence

import numpy as np

# Name -> share of the peak rate, as a function of x, the part of the way from the warm-up's end to the schedule's.
_SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + np.cos(np.pi * x)) / 2,
    "constant": lambda x: np.ones_like(x),
}


def make_rates(
    name: str,
    peak: float,
    warmup_steps: int,
    total_steps: int,
    milestones: Sequence[int] = (),
    step_factor: float = 0.1,
) -> np.ndarray:
    """Make a schedule of rates: linear from 0 to ``peak`` over the warm-up, then by ``name``.

    With x = (i - warmup) / (total - warmup)::

        rate(i) = peak (i + 1) / warmup                           for i < warmup
        linear:   peak (1 - x)
        cosine:   peak (1 + cos(pi x)) / 2      (Loshchilov & Hutter, SGDR, 2017, equation 5, without restarts)
        step:     peak step_factor^(number of milestones at or before i)
        constant: peak

    Args:
        name: ``linear``, ``cosine``, ``step``, ``constant``.
        peak: largest rate, above 0.
        warmup_steps: updates of the warm-up; 0 for none.
        total_steps: updates of the schedule; more than ``warmup_steps``.
        milestones: for ``step``: updates after which the rate falls.
        step_factor: for ``step``: factor of the rate at each milestone, between 0 and 1.

    Returns:
        The rates, (total_steps,) float32.
    """
    step = np.arange(total_steps)
    warmup = (step + 1) / max(warmup_steps, 1)
    if name == "step":
        share = step_factor ** np.searchsorted(np.sort(milestones), step, side="right").astype(np.float64)
    else:
        share = _SHAPES[name]((step - warmup_steps) / (total_steps - warmup_steps))
    return (peak * np.where(step < warmup_steps, warmup, share)).astype(np.float32)


# Name -> share of the rate after i of n updates of a cooldown.
_COOLDOWNS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "linear": lambda i, n: (n - i) / n,
    "sqrt": lambda i, n: 1 - np.sqrt(i / n),
}


def with_cooldown(rates: np.ndarray, after_step: int, n_steps: int, shape: str = "linear") -> np.ndarray:
    """Cut a schedule after ``after_step`` updates, and lower its next rate to 0 over ``n_steps`` more.

    rate(after_step + i) = rates[after_step] s(i)   for 0 <= i < n_steps
    linear: s(i) = 1 - i / n_steps
    sqrt:   s(i) = 1 - sqrt(i / n_steps)   (Hägele et al., Scaling Laws and Compute-Optimal Training, 2024)

    Args:
        rates: a whole schedule, (total_steps,), with total_steps above ``after_step``.
        after_step: updates before the cooldown.
        n_steps: updates of the cooldown.
        shape: ``linear`` or ``sqrt``.

    Returns:
        The rates, (after_step + n_steps,) float32.
    """
    left = _COOLDOWNS[shape](np.arange(n_steps), n_steps)
    return np.concatenate([rates[:after_step], rates[after_step] * left]).astype(np.float32)
