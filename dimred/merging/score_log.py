"""Score the candidates of a merge, keep the scores in ``scores.jsonl``, and choose among them."""

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.averaging.choice import Candidate, choose
from dimred.averaging.windows import Window, effective_size, profiles_around, uniform_windows
from dimred.errors import RunError, SearchError, number_of, shown
from dimred.io.atomic import atomic_write, flush_to_disk
from dimred.io.file_format import SCORES
from dimred.io.regular_file import read_regular
from dimred.merging.record import SPLITS, score_text
from dimred.merging.user_metric import FunctionMetric, MetricError, ProcessMetric, Score

_log = logging.getLogger(__name__)
_FINALISTS = 3  # averages that are scored on ``select`` too
_NO_ERROR = (
    "the metric gives one number, so a difference can't be told from chance; let it return one number for each sample, "
    "or (number, standard error)"
)


class BudgetSpentError(Exception):
    """The budget allows no further evaluation on ``search``."""


class Average(NamedTuple):
    """A network to score, sum(c_i x_i) / sum(c_i).

    Attributes:
        kind: ``window`` or ``profile``.
        name: its name in logs and tables.
        coefficients: c, one for each checkpoint.
    """

    kind: str
    name: str
    coefficients: tuple[float, ...]


class Trial(NamedTuple):
    """An evaluation of an average on a split.

    Attributes:
        average: the average.
        split: ``search``, ``select`` or ``test``.
        reestimate: whether BatchNorm statistics were re-estimated first, if the metric can do that.
        score: the score.
    """

    average: Average
    split: str
    reestimate: bool
    score: Score


class ScoreLog:
    """The scores of one merge.

    Args:
        path: the file that keeps them.
        about: what is scored and how; must be the same when a later call resumes the merge. Under ``better`` it says
            whether a ``lower`` or a ``higher`` score is better.
        evaluate: scores an average on a split, with or without re-estimated statistics.
        budget: limit on evaluations on ``search``; None for no limit.
        resume: whether to take over the scores of an earlier call.

    Raises:
        RunError: there are scores of an earlier call and ``resume`` is not set; or ``resume`` is set, and the file is
            damaged, of another version, or of another merge.
        OSError: the file can't be written.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        evaluate: Callable[[Average, str, bool], Score],
        budget: int | None,
        *,
        resume: bool,
    ) -> None:
        self._path = path
        self._evaluate = evaluate
        self._budget = math.inf if budget is None else budget
        self._sign = 1 if about["better"] == "lower" else -1
        self._trials: dict[tuple[Any, ...], Trial] = {}
        *lines, half = read_regular(path).split(b"\n") if path.exists() else [b""]
        if not resume and len(lines) > 1:
            found = number_of(len(lines) - 1, "score")
            raise RunError(
                f"{path} has {found} of an earlier call; continue with resume=True, or remove it",
                settings=["resume=True"],
            )
        self._header = SCORES.marked(about)
        if resume and lines:
            os.truncate(path, path.stat().st_size - len(half))  # a killed process may have left half a line
            self._read(lines)
        else:
            path.unlink(missing_ok=True)
        if resume:
            _log.info(f"kept from an earlier call: {number_of(len(self), 'score')}")

    def _read(self, lines: Sequence[bytes]) -> None:
        """Read the scores of an earlier call, whose first line must be the header of this one."""
        header = self._header
        try:
            earlier, *contents = [json.loads(line) for line in lines]
            SCORES.content_of(earlier)
            other = next((key for key in header if header[key] != earlier.get(key)), None)
            trials = map(_trial, contents) if other is None else ()
            self._trials = {(trial.average.coefficients, trial.split, trial.reestimate): trial for trial in trials}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RunError(f"{self._path} can't be used ({type(error).__name__}: {error}); move it away") from None
        if other is not None:
            raise RunError(
                f"{self._path} belongs to a merge with a different {other}: {shown(earlier.get(other))}, not "
                f"{shown(header[other])}; write to another file, or remove these scores"
            )

    def __len__(self) -> int:
        return len(self._trials)

    def get(self, average: Average, split: str = "search", *, reestimate: bool = True) -> Trial:
        """Return the trial of an average on a split; evaluate it unless this or a resumed call has done that.

        Args:
            average, split, reestimate: as in ``Trial``.

        Raises:
            BudgetSpentError: the budget allows no further evaluation on ``search``.
            SearchError: the metric failed; the scores before it are kept.
            CheckpointError: the average can't be made.
            OSError: the disk is full, or fails.
        """
        key = (average.coefficients, split, reestimate)
        if key not in self._trials:
            if split == "search" and reestimate and len(self._on(split)) >= self._budget:
                raise BudgetSpentError
            self._trials[key] = self._run(average, split, reestimate)
            score = score_text(self._trials[key].score[:2])
            _log.info(f"{len(self)} {split} {average.kind} {average.name}: {score}")
        return self._trials[key]

    def _on(self, split: str) -> list[Trial]:
        return [trial for trial in self._trials.values() if trial.split == split and trial.reestimate]

    def _run(self, average: Average, split: str, reestimate: bool) -> Trial:
        try:
            score = self._evaluate(average, split, reestimate)
        except MetricError as error:
            message = f"the metric failed for {average.name} on {split!r}: {error}"
            if not self._trials:
                raise SearchError(message) from None
            raise SearchError(
                f"{message}; {number_of(len(self), 'score')} stay in the log, and resume=True continues from there",
                settings=["resume=True"],
            ) from None
        self._check_samples(score, split)
        trial = Trial(average, split, reestimate, score)
        self._append(trial._asdict() | {"average": average._asdict(), "score": score._asdict()})
        return trial

    def _check_samples(self, score: Score, split: str) -> None:
        """Raise SearchError if the number of samples differs from an earlier one: the means could not be compared."""
        n_samples = len(score.samples or ())
        for n_before in {len(trial.score.samples or ()) for trial in self._on(split)} - {n_samples}:
            raise SearchError(
                f"the metric returned {n_samples} samples, but {n_before} for an earlier candidate (0 means one number "
                "alone); it must measure the same samples each time"
            )

    def _append(self, content: Mapping[str, Any]) -> None:
        if not self._path.exists():
            atomic_write(self._path, _line(self._header) + _line(content))
            return
        with self._path.open("ab") as file:
            file.write(_line(content))
            file.flush()
            flush_to_disk(file.fileno(), self._path, is_growing=True)  # a score may have taken an hour

    def ranking(self) -> list[tuple[Average, Candidate]]:
        """Return a pair (average, candidate made from it) for each average scored on ``search``, the best first."""
        pairs = [(trial.average, self.candidate(trial)) for trial in self._on("search")]
        return sorted(pairs, key=lambda pair: pair[1].loss)

    def candidate(self, trial: Trial) -> Candidate:
        """Return a trial as a candidate of a choice."""
        value, error, samples = trial.score
        size = effective_size(np.array(trial.average.coefficients))
        losses = self._sign * np.array(samples or [value], np.float64)
        return Candidate(trial.average.name, size, losses, error=None if samples else error)


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"


def _trial(content: dict[str, Any]) -> Trial:
    about = content["average"]
    score = content["score"]
    average = Average(**{**about, "coefficients": tuple(about["coefficients"])})
    value = Score(**{**score, "samples": score["samples"] and tuple(score["samples"])})
    return Trial(**{**content, "average": average, "score": value})


def score_candidates(scores: ScoreLog, steps: Sequence[int]) -> str:
    """Score uniform windows, and profiles around the best of them, on ``search``.

    Args:
        scores: the scores of this merge; new ones are added.
        steps: steps of the checkpoints, oldest first.

    Returns:
        The reason why scoring ended, in words.

    Raises:
        SearchError, CheckpointError, OSError: as for ``ScoreLog.get``.
    """
    try:
        windows = uniform_windows(len(steps))
        losses = [scores.candidate(scores.get(_average_of(window, steps))).loss for window in windows]
        for profile in profiles_around(windows[int(np.argmin(losses))]):
            scores.get(_average_of(profile, steps))
    except BudgetSpentError:
        return "the budget is spent"
    return "every candidate is scored"


def _average_of(window: Window, steps: Sequence[int]) -> Average:
    kind = "window" if window.profile == "uniform" else "profile"
    return Average(kind, window.name(steps), tuple(window.coefficients(steps).tolist()))


def choose_winner(scores: ScoreLog, steps: Sequence[int], has_splits: bool) -> tuple[Average, list[Average], str]:
    """Choose among the scored averages by the rule of ``dimred.averaging.choice``.

    With splits, the best few averages and the last checkpoint are scored on ``select``, which decides. Without splits,
    all are compared on ``search``.

    Args:
        scores: the scores of this merge; new ones are added.
        steps: steps of the checkpoints, oldest first.
        has_splits: whether the metric takes a split.

    Returns:
        The average to keep; the averages to show in the table; and the reason for the choice.

    Raises:
        SearchError: the metric failed.
    """
    ranking = scores.ranking()
    losses = {candidate.loss for _, candidate in ranking}
    if len(losses) == 1 < len(ranking):
        _log.warning(f"all {len(ranking)} candidates have the same score: does the metric read the candidate?")
    averages = [average for average, _ in ranking]
    last = _average_of(Window(len(steps) - 1, len(steps)), steps)
    finalists = [*(average for average in averages[:_FINALISTS] if average != last), last]
    split, rivals = ("select", finalists) if has_splits else ("search", averages)
    trials = [scores.get(average, split) for average in rivals]
    candidates = [scores.candidate(trial) for trial in trials]
    best = choose(candidates)
    advice = f"; {_NO_ERROR}" if len(best.losses) == 1 and best.error is None else ""
    winner = next(trial for trial, candidate in zip(trials, candidates, strict=True) if candidate is best)
    return winner.average, finalists, f"the best on {split!r}{advice}"


def table(
    scores: ScoreLog, winner: Average, finalists: Sequence[Average], judge: FunctionMetric | ProcessMetric
) -> list[dict[str, Any]]:
    """Make the rows of the record's table, with [value, standard error] for each split.

    With splits, the winner and the last of ``finalists`` are also scored on ``test``. If the metric re-estimates
    statistics, the winner is also scored without re-estimation, in another row.

    Args:
        scores: the scores of this merge; new ones are added.
        winner: the average that is kept.
        finalists: the averages to show beside it, as from ``choose_winner``; the last of them is the last checkpoint.
        judge: the metric.

    Returns:
        Rows with ``kind``, ``name``, ``kept`` and, under the name of each split, the score.
    """
    splits = [split for split in SPLITS if judge.has_splits or split == "search"]

    def row(average: Average, *, reestimate: bool = True) -> dict[str, Any]:
        splits_of_row = [split for split in splits if split != "test" or average in (winner, finalists[-1])]
        trials = [scores.get(average, split, reestimate=reestimate) for split in splits_of_row]
        scores_by_split = {trial.split: list(trial.score[:2]) for trial in trials}
        name = average.name if reestimate else f"{average.name}, statistics not re-estimated"
        return {"kind": average.kind, "name": name, "kept": reestimate and average == winner, **scores_by_split}

    rows = [row(average) for average in dict.fromkeys([winner, *finalists])]
    return [*rows, row(winner, reestimate=False)] if judge.reestimates else rows
