"""The rule that admits a result of a study, see ``README.md``; a table's column ``counts`` is made by it.

A score is the accuracy in percent, or minus a hundred times the loss of a text, so higher is better and a text's score
is below 0.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np

POINTS = 0.2
OF_A_LOSS = 0.003
N_ERRORS = 2  # standard errors
SEEDS = 3
PASSES = 1.0  # that whoever is ahead may have taken more, as trainings take whole epochs


class Verdict(Enum):
    """How one training stands to another by the rule."""

    AHEAD = "ahead"
    BEHIND = "behind"
    LEVEL = "level"
    """No difference that counts."""


def judge(
    ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray, passes: float, their_passes: float
) -> Verdict:
    """Compare two trainings by the rule.

    Args:
        ours, theirs: the scores, (n,), paired.
        passes, their_passes: what each has taken, with its choices.
    """
    scores = np.array([ours, theirs], np.float64)
    differences = scores[0] - scores[1]
    if len(differences) < SEEDS:
        return Verdict.LEVEL
    least = OF_A_LOSS * -scores[1].mean() if scores[1].mean() < 0 else POINTS
    mean, error = differences.mean(), differences.std(ddof=1) / len(differences) ** 0.5
    if abs(mean) <= max(least, N_ERRORS * error):
        return Verdict.LEVEL
    if mean > 0:
        return Verdict.AHEAD if passes <= their_passes + PASSES else Verdict.LEVEL
    return Verdict.BEHIND if their_passes <= passes + PASSES else Verdict.LEVEL


def in_words(verdicts: Mapping[str, Verdict]) -> str:
    """Write what counts, such as ``ahead: digits; behind: photographs``, from the verdict of each claim by its name."""
    found = {kind: [name for name, one in verdicts.items() if one is kind] for kind in (Verdict.AHEAD, Verdict.BEHIND)}
    return "; ".join(f"{kind.value}: {', '.join(names)}" for kind, names in found.items() if names) or "nothing"
