"""The candidates of one search: made, scored, remembered; and the final on the split ``select``, which decides."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.errors import SearchError
from dimred.files.atomic import open_atomic, rename_durably
from dimred.merging.combine import gram_matrix
from dimred.merging.inputs import Checkpoint
from dimred.merging.metric import Metric, Score
from dimred.merging.output import write_network
from dimred.merging.search import BudgetSpentError
from dimred.merging.trials import Candidate, Trial, Trials

__all__ = ["PLAIN", "Contest", "Progress", "final", "table", "work_folder"]

PLAIN = ("window", "profile")
_ALL = (*PLAIN, "soup", "search")
_FAILURES = 3  # of the first trials: that many are no accident


class Progress(NamedTuple):
    """A trial that was done; the best on ``search`` so far; evaluations on ``search`` so far, and at most."""

    trial: Trial
    best: Trial | None
    spent: int
    budget: int


class Contest:
    """Scores candidates, each once a split.

    Args:
        checkpoints: that the candidates are combinations of.
        out: the result; candidates and trials are in the folder beside it.
        dtype: of the result, or None.
        metric: the judge.
        sign: 1 where higher is better, else -1.
        budget: evaluations on ``search``.
        about: what is searched and how, for the file of trials.
        on_trial: is told of each trial.
    """

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        out: Path,
        dtype: str | None,
        metric: Metric,
        sign: int,
        budget: int,
        about: dict[str, Any],
        on_trial: Callable[[Progress], None],
    ) -> None:
        self.checkpoints, self.metric, self.sign = checkpoints, metric, sign
        self._out, self._dtype, self._budget, self._on_trial = out, dtype, budget, on_trial
        self._candidate = work_folder(out) / f"candidate{out.suffix}"
        self._known: dict[tuple[tuple[float, ...], str, bool], Trial] = {}
        self.trials = Trials(work_folder(out) / "trials.jsonl", about, self._evaluate)

    def on_search(self, candidate: Candidate) -> Trial:
        """The trial of a candidate on ``search``.

        Raises:
            BudgetSpentError: it would be one too many.
            SearchError: the first trials all failed.
        """
        on_search = [trial for (_, split, _), trial in self._known.items() if split == "search"]
        if (candidate.coefficients, "search", True) not in self._known and len(on_search) >= self._budget:
            raise BudgetSpentError
        trial = self.score(candidate, "search")
        failed = [one.failed for one in [*on_search, trial]]
        if len(failed) == _FAILURES and all(failed):
            raise SearchError(f"the metric failed on the first {_FAILURES} candidates: {failed[0]}")
        return trial

    def score(self, candidate: Candidate, split: str, *, reestimate: bool = True) -> Trial:
        """The trial of a candidate on a split."""
        key = (candidate.coefficients, split, reestimate)
        if key not in self._known:
            self._known[key] = self.trials.evaluate(candidate, split, reestimate)
            spent = sum(split == "search" for _, split, _ in self._known)
            self._on_trial(Progress(self._known[key], self.best(), spent, self._budget))
        return self._known[key]

    def signed(self, trial: Trial | None) -> float:
        """Its score, higher is better; NaN where it failed."""
        return math.nan if trial is None or trial.score is None else self.sign * trial.score.value

    def ranked(self, *kinds: str, split: str = "search") -> list[Trial]:
        """The trials of these kinds on a split, the best first, of equal ones the later; failed ones left out."""
        trials = [trial for (_, where, reestimated), trial in self._known.items() if where == split and reestimated]
        scored = [trial for trial in trials if trial.candidate.kind in (kinds or _ALL) and trial.score is not None]
        return sorted(scored, key=lambda trial: (-self.signed(trial), -trial.number))

    def best(self) -> Trial | None:
        """The best on ``search``."""
        return next(iter(self.ranked()), None)

    def known(self, candidate: Candidate, split: str) -> Trial | None:
        """The trial of a candidate on a split, if it was done."""
        return self._known.get((candidate.coefficients, split, True))

    def write(self, candidate: Candidate) -> None:
        """The candidate as the result."""
        self._make(candidate, reestimate=True, durable=True)
        _remove(self._out)  # of an interrupted call
        rename_durably(self._candidate, self._out)

    def gram(self) -> np.ndarray:
        """The Gram matrix of the checkpoints, which is kept in a file."""
        path = work_folder(self._out) / "gram.npy"
        if not path.exists():
            gram = gram_matrix(self.checkpoints, lambda read: None)
            with open_atomic(path) as file:
                np.save(file, gram)
        return np.asarray(np.load(path, allow_pickle=False))

    def close(self) -> None:
        """Remove the last candidate, let go of the file of trials, and end the metric."""
        self.trials.close()
        self.metric.close()
        _remove(self._candidate)

    def _evaluate(self, candidate: Candidate, split: str, reestimate: bool) -> Score:
        self._make(candidate, reestimate=reestimate, durable=False)
        return self.metric.score(self._candidate, split)

    def _make(self, candidate: Candidate, *, reestimate: bool, durable: bool) -> None:
        _remove(self._candidate)
        coefficients, template = np.array(candidate.coefficients), self.checkpoints[-1]
        write_network(self.checkpoints, coefficients, self._candidate, template, self._dtype, durable=durable)
        if reestimate and self.metric.reestimates:
            self.metric.reestimate(self._candidate)


def work_folder(out: Path) -> Path:
    """Where the trials of a result are."""
    return out.with_name(out.name + ".merge")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def final(contest: Contest, finalists: Sequence[Candidate], margin: float) -> tuple[Candidate, Candidate, str]:
    """Score the finalists on ``select``: which is kept, the best plain one, and why.

    Kept is the best plain candidate, unless a soup or a point of the search is better by ``margin`` standard errors.

    Raises:
        SearchError: no plain candidate has a score.
    """
    trials = [contest.score(candidate, "select") for candidate in finalists]
    plain = contest.ranked(*PLAIN, split="select")
    if not plain:
        raise SearchError(f"the metric failed on every plain candidate on 'select': {trials[0].failed}")
    moved = np.array([contest.signed(one) - contest.signed(contest.known(one.candidate, "search")) for one in trials])
    moved = moved[np.isfinite(moved)]
    noise = float(np.std(moved, ddof=1)) if len(moved) > 1 else 0.0
    for trial in contest.ranked("soup", "search", split="select"):
        gain, error = contest.signed(trial) - contest.signed(plain[0]), _error_of_difference(trial, plain[0], noise)
        if gain > margin * error:
            why = f"better on select than the best plain candidate by {gain:.4g}, with a standard error of {error:.2g}"
            return trial.candidate, plain[0].candidate, why
    why = f"no soup or point of the search was better on select by more than {margin:g} standard errors"
    return plain[0].candidate, plain[0].candidate, why


def _error_of_difference(one: Trial, other: Trial, noise: float) -> float:
    """The standard error of the difference of two scores: sample by sample where there are samples.

    Where a metric gives no error, ``noise`` is one: how much the finalists' scores moved against each other from one
    split to the next, or from one call to the next.
    """
    first, second = one.score, other.score
    assert first is not None
    assert second is not None
    if first.samples and second.samples and len(first.samples) == len(second.samples) > 1:
        differences = np.subtract(first.samples, second.samples)
        return float(differences.std(ddof=1) / math.sqrt(len(differences)))
    if first.error is not None and second.error is not None:
        return math.hypot(first.error, second.error)
    return noise


def table(
    contest: Contest, finalists: Sequence[Candidate], kept: Candidate, reference: Candidate
) -> list[dict[str, Any]]:
    """A row for each finalist and the last checkpoint, the best on ``select`` first; scores are [value, error].

    The kept one, the best plain one and the last checkpoint are scored on ``test``; the kept one without re-estimated
    statistics too, where the metric has the hook.
    """
    last = Candidate("window", "the last checkpoint", tuple(np.eye(len(contest.checkpoints))[-1].tolist()))

    def row(candidate: Candidate, reestimate: bool = True) -> dict[str, Any]:
        tested = contest.metric.has_splits and candidate.coefficients in [
            c.coefficients for c in (kept, reference, last)
        ]
        trials = {"search": contest.known(candidate, "search") if reestimate else None}
        for split in ("select", "test") if tested else ("select",):
            trials[split] = contest.score(candidate, split, reestimate=reestimate)
        scores = {split: list(one.score[:2]) for split, one in trials.items() if one and one.score}
        name = candidate.name if reestimate else f"{candidate.name}, statistics not re-estimated"
        return {"kind": candidate.kind, "name": name, "kept": reestimate and candidate == kept, **scores}

    unique = {candidate.coefficients: candidate for candidate in [last, *finalists]}
    rows = [row(candidate) for candidate in unique.values()]
    rows += [row(kept, reestimate=False)] if contest.metric.reestimates else []
    return sorted(rows, key=lambda one: -contest.sign * one["select"][0] if "select" in one else math.inf)
