"""Every evaluation is a line in ``trials.jsonl``; what stands there is not run again, so a killed search goes on."""

import fcntl
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dimred.errors import FaultError, RunError
from dimred.files.atomic import describe_os_error
from dimred.merging.metric import MetricError, Score

__all__ = ["Candidate", "Trial", "Trials", "read_trials"]


class Candidate(NamedTuple):
    """One network: sum(c_i x_i) / sum(c_i).

    Attributes:
        kind: ``window``, ``profile``, ``soup`` or ``search``.
        name: for people.
        coefficients: c, one for each checkpoint.
        point: where in the search's coordinates, if it is the search's.
    """

    kind: str
    name: str
    coefficients: tuple[float, ...]
    point: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Trial:
    """An evaluation of a candidate on a split; ``failed`` says why there is no score."""

    number: int
    candidate: Candidate
    split: str
    reestimated: bool
    score: Score | None
    failed: str | None
    seconds: float


class Trials:
    """The file of trials, held by one process at a time.

    Args:
        path: the file.
        about: what is searched and how; must be the same when the search goes on.
        evaluate: scores (candidate, split, with statistics re-estimated).

    Raises:
        RunError: another process holds it, or it is of another search.
        FaultError: it can't be written.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        evaluate: Callable[[Candidate, str, bool], Score],
    ) -> None:
        self.done: list[Trial] = []
        self._evaluate, self._path = evaluate, path
        self._earlier: dict[tuple[Any, ...], list[Trial]] = {}
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(json.loads(json.dumps(about)))
        except BlockingIOError:
            self._file.close()
            raise RunError(f"{path} is being written by another process; wait for it, or name another --out") from None
        except BaseException:
            self._file.close()
            raise

    def _read(self, about: dict[str, Any]) -> None:
        earlier, trials, whole = read_trials(self._path)
        self._file.truncate(whole)
        if earlier is None:
            self._append(about)
            return
        for trial in trials:
            self._earlier.setdefault(_key(trial.candidate, trial.split, trial.reestimated), []).append(trial)
        different = [key for key in {**about, **earlier} if about.get(key) != earlier.get(key)]
        if different:
            raise RunError(
                f"{self._path} is of a search with another {different[0]}: {earlier.get(different[0])!r}, not "
                f"{about.get(different[0])!r}; name another --out, or remove it"
            )

    def evaluate(self, candidate: Candidate, split: str, reestimate: bool) -> Trial:
        """The trial of a candidate: an earlier one, or a new one. A failure is one too.

        Raises:
            CheckpointError: the candidate can't be made.
            FaultError: the disk is full, or fails.
        """
        earlier = self._earlier.get(_key(candidate, split, reestimate))
        number = len(self.done) + 1
        if earlier:
            kept = earlier.pop(0)
            trial = Trial(number, candidate, split, reestimate, kept.score, kept.failed, kept.seconds)
        else:
            started = time.monotonic()
            score, failed = None, None
            try:
                score = self._evaluate(candidate, split, reestimate)
            except MetricError as error:
                failed = str(error)
            trial = Trial(number, candidate, split, reestimate, score, failed, round(time.monotonic() - started, 3))
            self._append(_content(trial))
        self.done.append(trial)
        return trial

    def _append(self, content: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(content, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise FaultError(f"{self._path} can't be written ({describe_os_error(error)})") from None

    def close(self) -> None:
        """Let another process have the file."""
        self._file.close()


def read_trials(path: Path) -> tuple[dict[str, Any] | None, list[Trial], int]:
    """What is searched and how, the trials, and the bytes of whole lines: the last may be half, of a killed process.

    Raises:
        RunError: the file is damaged.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    try:
        contents = [json.loads(line) for line in lines]
        trials = [_trial(content) for content in contents[1:]]
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged ({type(error).__name__}: {error}); move it away") from None
    return (contents[0] if contents else None), trials, path.stat().st_size - len(rest)


def _key(candidate: Candidate, split: str, reestimated: bool) -> tuple[Any, ...]:
    return candidate.kind, candidate.coefficients, split, reestimated


def _content(trial: Trial) -> dict[str, Any]:
    # One number a sample is kept where differences between candidates are judged, not for hundreds of trials.
    score = None if trial.score is None else trial.score._asdict()
    if score is not None and trial.split == "search":
        score["samples"] = None
    return {**trial.__dict__, "candidate": trial.candidate._asdict(), "score": score}


def _trial(content: dict[str, Any]) -> Trial:
    about, score = content["candidate"], content["score"]
    point = None if about["point"] is None else tuple(about["point"])
    candidate = Candidate(about["kind"], about["name"], tuple(about["coefficients"]), point)
    found = None
    if score is not None:
        samples = None if score["samples"] is None else tuple(score["samples"])
        found = Score(float(score["value"]), score["error"], samples)
    return Trial(**{**content, "candidate": candidate, "score": found})
