"""Candidates and their trials. Every evaluation is a line in ``trials.jsonl``; what stands there is not run again."""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dimred.errors import RunError, SearchError, shown
from dimred.merging.metric import MetricError, Score

PLAIN = ("window", "profile")
_KINDS = (*PLAIN, "soup", "search")
_FAILURES = 3  # of the first trials: that many are no accident


class BudgetSpentError(Exception):
    """No more evaluations on ``search``."""


class Candidate(NamedTuple):
    """One network, sum(c_i x_i) / sum(c_i), with a coefficient for each checkpoint.

    ``kind`` is ``window``, ``profile``, ``soup`` or ``search``; ``point`` is where in the search's coordinates it is.
    """

    kind: str
    name: str
    coefficients: tuple[float, ...]
    point: tuple[float, ...] | None = None


class Trial(NamedTuple):
    """An evaluation of a candidate on a split; ``failed`` says why there is no score."""

    number: int
    candidate: Candidate
    split: str
    reestimated: bool
    score: Score | None
    failed: str | None
    seconds: float


class Progress(NamedTuple):
    """A trial that was done; the best on ``search`` so far; evaluations on ``search`` so far, and at most."""

    trial: Trial
    best: Trial | None
    spent: int
    budget: int


class Trials:
    """The trials of one search, each run once; their folder is held by one process at a time.

    Args:
        path: the file.
        about: what is searched and how; must be the same when the search goes on.
        evaluate: scores (candidate, split, whether to re-estimate statistics).
        sign: 1 where higher is better, else -1.
        budget: evaluations on ``search``.
        on_trial: is told of each trial.

    Raises:
        RunError: the file is damaged, or of another search.
        OSError: it can't be written.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        evaluate: Callable[[Candidate, str, bool], Score],
        sign: int,
        budget: int,
        on_trial: Callable[[Progress], None],
    ) -> None:
        self._path, self._evaluate, self._sign, self._budget, self._on_trial = path, evaluate, sign, budget, on_trial
        self._done: dict[tuple[Any, ...], Trial] = {}
        self._file = path.open("a+b")
        try:
            earlier, trials, whole = read_trials(path)
            self._file.truncate(whole)
            self._earlier = {_key(trial.candidate, trial.split, trial.reestimated): trial for trial in trials}
            if earlier is None:
                self._append(about)
            else:
                self._check_same(json.loads(json.dumps(about)), earlier)
        except BaseException:
            self._file.close()
            raise

    def _check_same(self, about: dict[str, Any], earlier: dict[str, Any]) -> None:
        for key in {**about, **earlier}:
            if about.get(key) != earlier.get(key):
                raise RunError(
                    f"{self._path} is of a search with another {key}: {shown(earlier.get(key))}, not "
                    f"{shown(about.get(key))}; name another --out, or remove it"
                )

    def __len__(self) -> int:
        return len(self._done)

    def get(self, candidate: Candidate, split: str = "search", *, reestimate: bool = True) -> Trial:
        """The trial of a candidate on a split. A failure is one too.

        Raises:
            BudgetSpentError: it would be one too many on ``search``.
            SearchError: the first trials all failed; then their file is removed, so that the next call begins anew.
            CheckpointError: the candidate can't be made.
            OSError: the disk is full, or fails.
        """
        key = _key(candidate, split, reestimate)
        if key not in self._done:
            if split == "search" and self._spent() == self._budget:
                raise BudgetSpentError
            earlier = self._earlier.get(key)
            trial = earlier._replace(candidate=candidate) if earlier else self._run(candidate, split, reestimate)
            self._done[key] = trial._replace(number=len(self._done) + 1)
            failures = [one.failed for one in self._done.values() if one.failed]
            if len(failures) == len(self._done) == _FAILURES:
                self._path.unlink()
                raise SearchError(f"the metric failed on the first {_FAILURES} candidates: {failures[0]}")
            self._on_trial(Progress(self._done[key], self.best(), self._spent(), self._budget))
        return self._done[key]

    def _spent(self) -> int:
        return sum(trial.split == "search" for trial in self._done.values())

    def _run(self, candidate: Candidate, split: str, reestimate: bool) -> Trial:
        started = time.monotonic()
        score, failed = None, None
        try:
            score = self._evaluate(candidate, split, reestimate)
        except MetricError as error:
            failed = str(error)
        seconds = round(time.monotonic() - started, 3)
        trial = Trial(len(self._done) + 1, candidate, split, reestimate, score, failed, seconds)
        # One number a sample is kept where differences between candidates are judged, not for hundreds of trials.
        kept = score._replace(samples=None) if score and split == "search" else score
        content = trial._asdict() | {"candidate": candidate._asdict(), "score": kept and kept._asdict()}
        self._append(content)
        return trial

    def _append(self, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(content, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def signed(self, trial: Trial) -> float:
        """Its score, higher is better; NaN where it failed."""
        return self._sign * trial.score.value if trial.score else math.nan

    def ranked(self, *kinds: str, split: str = "search") -> list[Trial]:
        """The trials of these kinds on a split, the best first, of equal ones the later; failed ones left out."""
        scored = [one for one in self._done.values() if one.split == split and one.reestimated and one.score]
        wanted = [trial for trial in scored if trial.candidate.kind in (kinds or _KINDS)]
        return sorted(wanted, key=lambda trial: (-self.signed(trial), -trial.number))

    def best(self) -> Trial | None:
        return next(iter(self.ranked()), None)

    def known(self, candidate: Candidate, split: str) -> Trial | None:
        return self._done.get(_key(candidate, split, True))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _key(candidate: Candidate, split: str, reestimated: bool) -> tuple[Any, ...]:
    return candidate.coefficients, split, reestimated


def read_trials(path: Path) -> tuple[dict[str, Any] | None, list[Trial], int]:
    """What is searched and how; the trials; the bytes of whole lines, as a killed process may leave half a line.

    Raises:
        RunError: the file is damaged.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    try:
        contents = [json.loads(line) for line in lines]
        trials = [_trial(content) for content in contents[1:]]
        return contents[0] if contents else None, trials, path.stat().st_size - len(rest)
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged ({type(error).__name__}: {error}); move it away") from None


def _trial(content: dict[str, Any]) -> Trial:
    about, score = content["candidate"], content["score"]
    lists = {"coefficients": tuple(about["coefficients"]), "point": about["point"] and tuple(about["point"])}
    found = score and Score(**{**score, "samples": score["samples"] and tuple(score["samples"])})
    return Trial(**{**content, "candidate": Candidate(**{**about, **lists}), "score": found})
