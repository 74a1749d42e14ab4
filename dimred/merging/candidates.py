"""The candidates of a merge in the order in which they are scored, and the choice among them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dimred.averaging.choice import choose, lowest
from dimred.averaging.windows import Window, greedy_soup, profiles_around, uniform_windows
from dimred.errors import SearchError
from dimred.merging.metric import FunctionMetric, ProcessMetric, Score
from dimred.merging.scores import SPLITS, Average, BudgetSpentError, Scores

_FINALISTS = 3  # windows and profiles that are scored on ``select`` too
_SOUP = 16  # most checkpoints that a soup is made of
_NO_SPLITS = (
    "no greedy soup was tried, as it could only be judged by what it was made from; give the metric a second "
    "parameter, split"
)
_NO_ERROR = (
    "the metric gives one number, so a difference can't be told from chance; let it return one number for each sample, "
    "or (number, standard error)"
)


def score_candidates(scores: Scores, steps: Sequence[int], has_splits: bool) -> str:
    """Score on ``search``: uniform windows, profiles around the best of them, and with splits a greedy soup.

    Args:
        scores: of the averages.
        steps: of the checkpoints, oldest first.
        has_splits: whether the metric tells splits apart, so that a soup can be judged on another one.

    Returns:
        Why it ended.
    """
    try:
        windows = uniform_windows(len(steps), shortest=1, shortest_earlier=1)
        losses = [scores.candidate(scores.get(_average_of(window, steps))).loss for window in windows]
        for profile in profiles_around(windows[int(np.argmin(losses))]):
            scores.get(_average_of(profile, steps))
        if has_splits:
            _score_soup(scores, steps)
    except BudgetSpentError:
        return "the budget is spent"
    return "every candidate is scored"


def _average_of(window: Window, steps: Sequence[int]) -> Average:
    kind = "window" if window.profile == "uniform" else "profile"
    return Average(kind, window.name(steps), tuple(window.coefficients(steps).tolist()))


def _score_soup(scores: Scores, steps: Sequence[int]) -> None:
    """Score the greedy soup of all checkpoints, or of 16 evenly spread ones with the newest."""
    n = len(steps)
    members = list(range(n)) if n <= _SOUP else np.linspace(0, n - 1, _SOUP).round().astype(int).tolist()

    def score(chosen: tuple[float, ...]) -> float:
        numbers = [members[place] for place in np.flatnonzero(chosen)]
        average = _average_of(Window(numbers[0], numbers[0] + 1), steps)
        if len(numbers) > 1:
            whole = tuple(float(number in numbers) for number in range(n))
            average = Average("soup", f"soup of {len(numbers)}", whole)
        loss = scores.candidate(scores.get(average)).loss
        return -loss if math.isfinite(loss) else math.nan

    greedy_soup(len(members), score)


def choose_average(scores: Scores, steps: Sequence[int], has_splits: bool) -> tuple[Average, list[Average], str]:
    """Choose among the scored averages by the rule of ``dimred.averaging.choice``.

    With splits, the best few windows and profiles, the soup and the last checkpoint are scored on ``select``, which
    decides. Without splits, all are compared on ``search``.

    Returns:
        The average to keep; those to show beside it; and the reason for the choice.

    Raises:
        SearchError: the metric failed on every one of them.
    """
    searched = [average for average, _ in scores.scored("search")]
    plain = [average for average in searched if average.kind != "soup"][:_FINALISTS]
    soups = [average for average in searched if average.kind == "soup"][:1]
    shown = [*dict.fromkeys([*plain, *soups, _average_of(Window(len(steps) - 1, len(steps)), steps)])]
    split, rivals = ("select", shown) if has_splits else ("search", searched)
    trials = [scores.get(average, split) for average in rivals]
    measured = [trial for trial in trials if trial.score is not None]
    if not measured:
        why = trials[0].failed if trials else "--budget is too small to tell more"
        raise SearchError(f"the metric failed on every candidate on {split!r}: {why}")
    candidates = [scores.candidate(trial) for trial in measured]
    best, chosen = lowest(candidates), choose(candidates)
    why = f"the best on {split!r}"
    if chosen is not best:
        why = (
            f"worth the most equal checkpoints ({chosen.effective_size:.3g}) of all within one standard error of the "
            f"best on {split!r}, {best.name}"
        )
    advice = [_NO_ERROR] if len(best.losses) == 1 and best.error is None else []
    advice += [] if has_splits else [_NO_SPLITS]
    return measured[candidates.index(chosen)].average, shown, "; ".join([why, *advice])


def table(
    scores: Scores, kept: Average, shown: Sequence[Average], judge: FunctionMetric | ProcessMetric
) -> list[dict[str, Any]]:
    """Make the rows of the record's table, with [value, standard error] for each split.

    With splits, the kept average and the last of ``shown`` are also scored on ``test``. If the metric re-estimates
    statistics, the kept average is also scored without that.
    """
    splits = [split for split in SPLITS if judge.has_splits or split == "search"]

    def row(average: Average, *, reestimate: bool = True) -> dict[str, Any]:
        wanted = [split for split in splits if split != "test" or average in (kept, shown[-1])]
        trials = [scores.get(average, split, reestimate=reestimate) for split in wanted]
        found = {trial.split: list(trial.score[:2]) for trial in trials if trial.score}
        name = average.name if reestimate else f"{average.name}, statistics not re-estimated"
        return {"kind": average.kind, "name": name, "kept": reestimate and average == kept, **found}

    rows = [row(average) for average in dict.fromkeys([kept, *shown])]
    return [*rows, row(kept, reestimate=False)] if judge.reestimates else rows


def scores_of(row: Mapping[str, Any]) -> list[str]:
    """Format the scores in a row of the record's table, one text a split; empty without a score."""
    return [str(Score(*row[split])) if split in row else "" for split in SPLITS]
