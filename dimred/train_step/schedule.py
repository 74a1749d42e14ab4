"""Learning rates, one number for each update."""

import numpy as np

from dimred.errors import ConfigError


def warmup_then_linear(peak: float, warmup_steps: int, total_steps: int) -> np.ndarray:
    """Linear from 0 to ``peak`` over the warm-up, then linearly to 0 at ``total_steps``.

    rate(i) = peak (i + 1) / warmup_steps                            for i < warmup_steps
    rate(i) = peak (total_steps - i) / (total_steps - warmup_steps)  from there on

    Args:
        peak: largest rate, above 0.
        warmup_steps: updates of the warm-up; 0 for none.
        total_steps: updates until the rate is 0; more than ``warmup_steps``.

    Returns:
        (total_steps,) float32.

    Raises:
        ConfigError: the warm-up does not end before the schedule.
    """
    if not 0 <= warmup_steps < total_steps:
        raise ConfigError(f"warmup_steps is {warmup_steps}; it must be at least 0 and below total_steps {total_steps}")
    step = np.arange(total_steps)
    warmup = peak * (step + 1) / max(warmup_steps, 1)
    decay = peak * (total_steps - step) / (total_steps - warmup_steps)
    return np.where(step < warmup_steps, warmup, decay).astype(np.float32)


def with_cooldown(rates: np.ndarray, after_step: int, n_steps: int) -> np.ndarray:
    """Leave a schedule after ``after_step`` updates: from the rate it has there linearly to 0 over ``n_steps``.

    rate(after_step + i) = rates(after_step) (n_steps - i) / n_steps   for 0 <= i < n_steps

    Args:
        rates: (total_steps,), a whole schedule.
        after_step: updates before the cooldown.
        n_steps: updates of the cooldown; it ends within the schedule.

    Returns:
        (after_step + n_steps,) float32.
    """
    left = np.arange(n_steps, 0, -1) / n_steps
    return np.concatenate([rates[:after_step], rates[after_step] * left]).astype(np.float32)
