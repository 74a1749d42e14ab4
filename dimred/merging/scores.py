"""The scores of a merge's candidates: a line each in ``scores.jsonl``, where a later call finds them."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.averaging.choice import Candidate
from dimred.averaging.windows import effective_size
from dimred.errors import RunError, SearchError, shown
from dimred.merging.metric import MetricError, Score

_log = logging.getLogger(__name__)
SPLITS = ("search", "select", "test")
_FAILURES = 3  # if so many of the first candidates fail, it is no accident


class BudgetSpentError(Exception):
    """No evaluations are left."""


class Average(NamedTuple):
    """A network to score, sum(c_i x_i) / sum(c_i).

    Attributes:
        kind: ``window``, ``profile`` or ``soup``.
        name: for a reader.
        coefficients: c, one for each checkpoint.
    """

    kind: str
    name: str
    coefficients: tuple[float, ...]


class Trial(NamedTuple):
    """An evaluation of an average on a split; either ``score`` or the reason why it ``failed`` is None."""

    average: Average
    split: str
    reestimated: bool
    score: Score | None
    failed: str | None
    seconds: float


class Scores:
    """The scores of one merge.

    Args:
        path: of the file.
        about: what is scored and how; must be the same when a later call goes on.
        evaluate: scores an average on a split, with or without re-estimated statistics.
        better: ``lower`` or ``higher``.
        budget: most evaluations on ``search``; None for no limit.

    Raises:
        RunError: the file is damaged, or of another merge.
        OSError: it can't be written.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        evaluate: Callable[[Average, str, bool], Score],
        better: str,
        budget: int | None,
    ) -> None:
        self._path, self._evaluate, self._budget = path, evaluate, budget
        self._sign = 1 if better == "lower" else -1
        self._asked: dict[tuple[Any, ...], Trial] = {}
        path.touch()
        *lines, half = path.read_bytes().split(b"\n")
        os.truncate(path, path.stat().st_size - len(half))  # a killed process may have left half a line
        try:
            earlier, *contents = [json.loads(line) for line in lines] or [None]
            trials = map(_trial, contents)
            self._earlier = {(one.average.coefficients, one.split, one.reestimated): one for one in trials}
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{path} is damaged ({type(error).__name__}: {error}); move it away") from None
        if earlier is None:
            self._append(about)
        for key, value in about.items() if earlier else ():
            if value != earlier.get(key):
                raise RunError(
                    f"{path} is of a merge with another {key}: {shown(earlier.get(key))}, not {shown(value)}; name "
                    "another --out, or remove it"
                )

    def __len__(self) -> int:
        return len(self._asked)

    def get(self, average: Average, split: str = "search", *, reestimate: bool = True) -> Trial:
        """Score an average on a split, unless it has been; a failure is a trial too.

        Raises:
            BudgetSpentError: it would be one too many on ``search``.
            SearchError: the first trials all failed; their file is removed, so that the next call begins anew.
            CheckpointError: the average can't be made.
            OSError: the disk is full, or fails.
        """
        key = (average.coefficients, split, reestimate)
        if key not in self._asked:
            if split == "search" and reestimate and len(self._on(split)) == self._budget:
                raise BudgetSpentError
            trial = self._earlier.get(key) or self._run(average, split, reestimate)
            self._asked[key] = trial._replace(average=average)
            failures = [one.failed for one in self._asked.values() if one.failed]
            if len(failures) == len(self._asked) == _FAILURES:
                self._path.unlink()
                raise SearchError(f"the metric failed on the first {_FAILURES} candidates: {failures[0]}")
            found = str(trial.score) if trial.score else f"failed: {trial.failed}"
            _log.info(f"{len(self)} {split} {average.kind} {average.name}: {found}")
        return self._asked[key]

    def _on(self, split: str) -> list[Trial]:
        return [trial for trial in self._asked.values() if trial.split == split and trial.reestimated]

    def _run(self, average: Average, split: str, reestimate: bool) -> Trial:
        started = time.monotonic()
        score, failed = None, None
        try:
            score = self._evaluate(average, split, reestimate)
        except MetricError as error:
            failed = str(error)
        trial = Trial(average, split, reestimate, score, failed, round(time.monotonic() - started, 3))
        self._append(trial._asdict() | {"average": average._asdict(), "score": score and score._asdict()})
        return trial

    def _append(self, content: Mapping[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(json.dumps(content, allow_nan=False).encode() + b"\n")

    def scored(self, split: str) -> list[tuple[Average, Candidate]]:
        """Return the averages that have a score on a split, each as a candidate, the best first."""
        found = [(trial.average, self.candidate(trial)) for trial in self._on(split) if trial.score]
        return sorted(found, key=lambda pair: pair[1].loss)

    def candidate(self, trial: Trial) -> Candidate:
        """Return a trial as a candidate of a choice; a failed one has an infinite loss."""
        value, error, samples = trial.score or Score(self._sign * math.inf)
        size = effective_size(np.array(trial.average.coefficients))
        losses = self._sign * np.array(samples or [value], np.float64)
        return Candidate(trial.average.name, size, losses, error=None if samples else error)


def _trial(content: dict[str, Any]) -> Trial:
    about, score = content["average"], content["score"]
    average = Average(**{**about, "coefficients": tuple(about["coefficients"])})
    found = score and Score(**{**score, "samples": score["samples"] and tuple(score["samples"])})
    return Trial(**{**content, "average": average, "score": found})
