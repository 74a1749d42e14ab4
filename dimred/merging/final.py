"""The final on the split ``select``, which decides, and the table of what was in it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dimred.errors import SearchError
from dimred.merging.metric import Score
from dimred.merging.trials import PLAIN, Candidate, Trial, Trials

SPLITS = ("search", "select", "test")
_MARGIN = 2  # standard errors: of 100 searches on mere noise, none to seven win with it, 6 to 26 with 1


def final(trials: Trials, finalists: Sequence[Candidate]) -> tuple[Candidate, Candidate, str]:
    """Score the finalists on ``select``: which is kept, the best plain one, and why.

    Kept is the best plain candidate, unless a soup or a point of the search is better by two standard errors.

    Raises:
        SearchError: no plain candidate has a score.
    """
    again = [trials.get(candidate, "select") for candidate in finalists]
    plain = trials.ranked(*PLAIN, split="select")
    if not plain:
        where, why = ("select", again[0].failed) if again else ("search", "--budget is too small to tell more")
        raise SearchError(f"the metric failed on every plain candidate on {where!r}: {why}")
    known = [(trials.known(trial.candidate, "search"), trial) for trial in again]
    moved = np.array([trials.signed(trial) - trials.signed(before) for before, trial in known if before])
    moved = moved[np.isfinite(moved)]
    noise = float(np.std(moved, ddof=1)) if len(moved) > 1 else 0.0
    for trial in trials.ranked("soup", "search", split="select"):
        gain, error = trials.signed(trial) - trials.signed(plain[0]), _error_of_difference(trial, plain[0], noise)
        if gain > _MARGIN * error:
            why = f"better on select than the best plain candidate by {gain:.4g}, with a standard error of {error:.2g}"
            return trial.candidate, plain[0].candidate, why
    why = f"no soup or point of the search was better on select by more than {_MARGIN} standard errors"
    return plain[0].candidate, plain[0].candidate, why


def scores_of(row: Mapping[str, Any]) -> list[str]:
    """The scores in a row of ``table`` as texts, one a split; empty where there is none."""
    return [str(Score(*row[split])) if split in row else "" for split in SPLITS]


def _error_of_difference(one: Trial, other: Trial, noise: float) -> float:
    """The standard error of the difference of two scores: sample by sample where there are samples.

    Where a metric gives no error, ``noise`` is one: how much the finalists' scores moved against each other from one
    split to the next, or from one call to the next.
    """
    if one.score is None or other.score is None:
        return math.nan
    (_, first, mine), (_, second, theirs) = one.score, other.score
    if mine and theirs and len(mine) == len(theirs) > 1:
        return float(np.subtract(mine, theirs).std(ddof=1) / math.sqrt(len(mine)))
    return noise if first is None or second is None else math.hypot(first, second)


def table(
    trials: Trials, finalists: Sequence[Candidate], tested: Sequence[Candidate], bare: Candidate | None
) -> list[dict[str, Any]]:
    """A row for each finalist, the best on ``select`` first; scores are [value, standard error] by split.

    The first finalist is the kept one; ``tested`` are scored on ``test`` too, ``bare`` without re-estimated statistics.
    """

    def row(candidate: Candidate, reestimate: bool = True) -> tuple[float, dict[str, Any]]:
        known = trials.known(candidate, "search") if reestimate else None
        found = {"search": known} | {
            split: trials.get(candidate, split, reestimate=reestimate)
            for split in (("select", "test") if candidate in tested else ("select",))
        }
        scores = {split: list(trial.score[:2]) for split, trial in found.items() if trial and trial.score}
        name = candidate.name if reestimate else f"{candidate.name}, statistics not re-estimated"
        value = -trials.signed(found["select"] or trials.get(candidate, "select"))
        kept = reestimate and candidate == finalists[0]
        return value, {"kind": candidate.kind, "name": name, "kept": kept, **scores}

    unique = {candidate.coefficients: candidate for candidate in reversed(finalists)}
    rows = [row(candidate) for candidate in reversed(unique.values())] + ([row(bare, False)] if bare else [])
    return [content for _, content in sorted(rows, key=lambda one: (math.isnan(one[0]), one[0]))]
