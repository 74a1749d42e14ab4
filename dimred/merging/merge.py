"""``dimred.merge``: an average of the checkpoints of a training run, given by a profile or chosen by a metric.

A metric scores all candidates on the split ``search``. If it takes a split as an argument, it also scores the best few
on ``select``, which decides, and the chosen one on ``test``.
"""

import contextlib
import hashlib
import inspect
import logging
import os
import shlex
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from dimred.averaging.windows import gives_numbers, profile_coefficients
from dimred.errors import ConfigError, SearchError, SeriesError, StoppedError, check_number, check_type, shown
from dimred.io.atomic import FolderLock, discard, remove, remove_leftovers, rename
from dimred.io.stop_signals import handled
from dimred.merging.folder import is_name_of, read_one
from dimred.merging.inputs import (
    Sources,
    as_named,
    check_integers,
    layout_from,
    list_sources,
    log_copied,
    open_checkpoints,
)
from dimred.merging.lora import adapter_config
from dimred.merging.output import check_target, write_network
from dimred.merging.record import check_is_new, describe, name_faults, record_of, sample_digests, work_folder
from dimred.merging.saved_network import SavedNetwork
from dimred.merging.score_log import Average, ScoreLog, choose_winner, score_candidates, table
from dimred.merging.user_metric import FunctionMetric, MetricError, ProcessMetric, Score

_log = logging.getLogger(__name__)
_CANDIDATE = "candidate-"  # the file names of averages begin with it, until one is the result


def merge(
    checkpoints: Sources,
    out: str | Path,
    *,
    metric: str | Callable[..., Any] | None = None,
    minimize: bool = False,
    maximize: bool = False,
    budget: int | None = None,
    timeout: float = 3600.0,
    resume: bool = False,
    profile: str | None = None,
    last: int | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    order: str = "step",
    names_from: str | Path | None = None,
    dtype: str | None = None,
    rest: str | Path | None = None,
    lora_rank: int | None = None,
) -> dict[str, Any]:
    """Average checkpoints by a profile, or choose the one of many averages that a metric scores best.

    The result has the layout of the last checkpoint, or of ``rest``. For LoRA adapters it is an adapter that adds the
    mean of their updates. Its record is ``OUT.json``; a folder also gets a model card, ``README.md``. With a metric,
    all scores are in the folder ``OUT.merge``.

    Args:
        checkpoints: one folder; or any number of files, folders of shards and globs.
        out: the new file, with the checkpoints' ending or ``.safetensors``; or the new folder, for shards or adapters.
        metric: ``FILE.py:NAME``; or a function, which runs in this process, without a timeout. See ``FunctionMetric``.
        minimize, maximize: whether a lower or a higher score is better; a metric needs exactly one of them.
        budget: limit on evaluations on ``search``; by default all candidates are scored.
        timeout: limit on one evaluation, in seconds.
        resume: whether to keep the scores in ``OUT.merge`` that a stopped, killed or failed call left.
        profile: without a metric, how much each checkpoint counts; see ``profile_coefficients``; default ``uniform``.
            Numbers belong to the checkpoints as they are named, and for one folder or glob to the oldest first.
        last: number of checkpoints to take, the newest; by default all.
        from_step, to_step: take only checkpoints between these steps, both included.
        order: what to sort the checkpoints by: ``step``, ``name`` or ``mtime``.
        names_from: a checkpoint of the network alone, or a ``manifest.json``, which says which entries are weights; all
            others are copied. For the default see ``trainable_layout``.
        dtype: type of the weights written, such as ``float32``; by default the type in the last checkpoint or ``rest``.
        rest: the checkpoint to copy everything but the weights from; default the last one.
        lora_rank: largest rank of the mean of LoRA adapters; default no limit, so that the mean is exact.

    Returns:
        The record, see ``record_of``; with a metric also what was kept, why, and the scores.

    Raises:
        ConfigError: an argument is not allowed.
        CheckpointError: a checkpoint is damaged, belongs to a different network, or was written meanwhile.
        SeriesError: too few checkpoints are left.
        SearchError: the metric fails, or measures another number of samples than before.
        RunError: another process is writing ``out``; ``OUT.merge`` has scores and ``resume`` is not set; or ``resume``
            is set, and the scores are damaged or belong to a different merge.
        FaultError: a file can't be written.
        StoppedError: a signal, such as ctrl-C's or SIGTERM, ended the merge; see ``stop_signals``.
    """
    named = list_sources(checkpoints)
    check_type("out", out, (str, os.PathLike), "the path of the new file or folder")
    target = Path(out)
    _check_paths(names_from=names_from, rest=rest)
    _check_metric(metric, profile, minimize=minimize, maximize=maximize, budget=budget, resume=resume)
    _check_numbers(budget=budget, lora_rank=lora_rank, timeout=timeout)
    if callable(metric):
        _check_function(metric)
    check_is_new(target)
    command = _command(
        named,
        {
            "out": out,
            "metric": metric,
            "minimize": minimize,
            "maximize": maximize,
            "budget": budget,
            "timeout": timeout,
            "resume": resume,
            "profile": profile,
            "last": last,
            "from_step": from_step,
            "to_step": to_step,
            "order": order,
            "names_from": names_from,
            "dtype": dtype,
            "rest": rest,
            "lora_rank": lora_rank,
        },
    )
    layout = None if names_from is None else layout_from(Path(names_from))
    inputs = open_checkpoints(named, order, last=last, from_step=from_step, to_step=to_step, layout=layout)
    template = _template_of(inputs, rest, lora_rank)
    check_target(target, template, dtype)
    log_copied(template, inputs[-1].layout.names)
    if metric is None:
        profile = "uniform" if profile is None else profile
        coefficients = _coefficients_of(profile, inputs, named)
    elif len(inputs) < 2:
        raise SeriesError(
            f"{inputs[0].path} is the only checkpoint that is left; to choose, a metric needs two or more"
        )
    with _stoppable(), _folder_to_work_in(target) as work:
        write = _AverageWriter(inputs, template, work.absolute(), target.suffix, dtype, lora_rank)
        if metric is None:
            result, notes = write(coefficients)
            notes |= {"profile": profile}
        else:
            about = {
                "metric": getattr(metric, "__qualname__", str(metric)),  # a user may mend its file and resume
                "better": "lower" if minimize else "higher",
                "dtype": dtype,
                "lora_rank": lora_rank,
                "digest of the checkpoints": _digest_of([*inputs, template]),
                "layout of the weights": inputs[-1].layout.fingerprint,
            }
            coefficients, result, notes = _choose(inputs, write, metric, timeout, about, work, budget, resume)
        for checkpoint in (*inputs, template):
            checkpoint.check_unchanged()
        record = record_of(inputs, coefficients, template, order, dtype, command) | notes
        check_is_new(target)  # another program may have written it since the first check
        describe(result, target, record)
        rename(result, target)  # last, so that a call that was killed before it can be repeated
    return record


def _check_paths(**paths: object) -> None:
    for name, path in paths.items():
        check_type(name, path, (str, os.PathLike, type(None)), "the path of a checkpoint")


def _check_metric(
    metric: object, profile: str | None, *, minimize: bool, maximize: bool, budget: int | None, resume: bool
) -> None:
    """Check that the arguments that go with a metric are there if there is one, and not otherwise."""
    if metric is None:
        if minimize or maximize or resume or budget is not None:
            raise ConfigError(
                "minimize=, maximize=, budget= and resume= need metric=",
                settings=["minimize=", "maximize=", "budget=", "resume=", "metric="],
            )
        return
    if profile is not None:
        raise ConfigError(
            f"profile is {profile!r}, but the metric chooses windows and profiles; leave it out", argument="profile"
        )
    if minimize == maximize:
        raise ConfigError(
            "say which score is better: give either minimize=True or maximize=True",
            settings=["minimize=True", "maximize=True"],
        )


def _check_numbers(*, budget: int | None, lora_rank: int | None, timeout: float) -> None:
    for name, number in {"budget": budget, "lora_rank": lora_rank}.items():
        if number is not None:
            check_number(name, number, at_least=1, whole=True)
    check_number("timeout", timeout, above=0)


def _coefficients_of(profile: str, inputs: Sequence[SavedNetwork], named: Sequence[str]) -> np.ndarray:
    """Return the coefficients of the checkpoints, the oldest first; if the user gave numbers, log whose each is."""
    coefficients = profile_coefficients(profile, [checkpoint.step for checkpoint in inputs])
    if gives_numbers(profile):
        coefficients = coefficients[as_named(inputs, named)]
        lines = [f"\n  {c:g}  {checkpoint.path}" for c, checkpoint in zip(coefficients, inputs, strict=True)]
        _log.info(f"the checkpoints' coefficients, oldest first:{''.join(lines)}")
    return coefficients


@contextlib.contextmanager
def _folder_to_work_in(target: Path) -> Iterator[Path]:
    """Lock the folder beside the target inside the block, and leave no candidate in it before and after."""
    work = work_folder(target)
    candidates = partial(work.absolute().glob, f"{_CANDIDATE}*")
    with name_faults(target), FolderLock(work, "out", target) as lock:
        try:
            remove_leftovers(target.parent)
            remove_leftovers(work, is_only_writer=True)
            for leftover in candidates():
                remove(leftover)
            yield work
        finally:
            for candidate in candidates():
                discard(candidate)
            lock.remove()


@dataclass(frozen=True)
class _AverageWriter:
    """Writes averages of the inputs into a folder."""

    inputs: Sequence[SavedNetwork]
    template: SavedNetwork
    folder: Path
    suffix: str  # of the file; empty for a folder
    dtype: str | None
    lora_rank: int | None

    def __call__(self, coefficients: np.ndarray) -> tuple[Path, dict[str, Any]]:
        """Write an average under a new name, and return its path and entries to add to the record.

        The path is absolute and new each time, because a metric may change the current folder, and may cache results
        by path.
        """
        path = self.folder / f"{_CANDIDATE}{uuid.uuid4().hex[:8]}{self.suffix}"
        notes = write_network(self.inputs, coefficients, path, self.template, self.dtype, lora_rank=self.lora_rank)
        return path, notes


def _template_of(inputs: Sequence[SavedNetwork], rest: str | Path | None, lora_rank: int | None) -> SavedNetwork:
    """Return the checkpoint to copy everything but the weights from, after checking that it and the inputs fit."""
    check_integers(inputs)
    is_lora = adapter_config(inputs[-1]) is not None
    if rest is not None and is_lora:
        raise ConfigError(
            f"rest is {str(rest)!r}, but LoRA adapters have nothing else to copy; leave it out", argument="rest"
        )
    if lora_rank is not None and not is_lora:
        raise ConfigError(
            f"lora_rank is {lora_rank}, but the checkpoints are not LoRA adapters; leave it out", argument="lora_rank"
        )
    template = inputs[-1] if rest is None else _open_rest(Path(rest), inputs)
    if misfit := template.misfit(inputs[-1].layout):
        raise ConfigError(f"rest is {str(rest)!r}, which does not fit the checkpoints: {misfit}", argument="rest")
    return template


def _check_function(metric: Callable[..., Any]) -> None:
    """Check that a metric that is a function can be called with a candidate."""
    try:
        FunctionMetric(metric)
    except MetricError as error:
        raise ConfigError(f"metric is {shown(metric)}, which can't be used: {error}", argument="metric") from None


def _choose(
    inputs: Sequence[SavedNetwork],
    write: Callable[[np.ndarray], tuple[Path, dict[str, Any]]],
    metric: str | Callable[..., Any],
    timeout: float,
    about: dict[str, Any],
    work: Path,
    budget: int | None,
    resume: bool,
) -> tuple[np.ndarray, Path, dict[str, Any]]:
    """Score averages by the metric; return the best one's coefficients, its path, and entries to add to the record."""
    steps = [checkpoint.step for checkpoint in inputs]

    def evaluate(average: Average, split: str, reestimate: bool) -> Score:
        candidate, _ = write(np.array(average.coefficients))
        if reestimate and judge.reestimates:
            judge.reestimate(candidate)
        score = judge.score(candidate, split)
        remove(candidate)
        return score

    scores = ScoreLog(work / "scores.jsonl", about, evaluate, budget, resume=resume)
    log = work / "metric.log"
    judge = FunctionMetric(metric) if callable(metric) else ProcessMetric(metric, timeout, log)
    with contextlib.closing(judge):
        lines = [f"\n  {checkpoint.step}  {'/'.join(checkpoint.path.parts[-2:])}" for checkpoint in inputs]
        _log.info(f"{len(inputs)} checkpoints by step, oldest first:{''.join(lines)}")
        try:
            why_ended = score_candidates(scores, steps)
            winner, finalists, why = choose_winner(scores, steps, judge.has_splits)
            rows = table(scores, winner, finalists, judge)
        except SearchError as error:
            message = str(error) if callable(metric) else f"{error} (see {log})"
            raise SearchError(message, settings=error.settings) from None
        except KeyboardInterrupt as stop:
            n = len(scores)
            if n == 0:
                raise StoppedError(_number_of(stop), f"0 scores are in {work}") from None
            raise StoppedError(
                _number_of(stop),
                f"{n} scores are in {work}; resume=True continues, and with budget={n} it chooses among these",
                settings=["resume=True", f"budget={n}"],
            ) from None
        coefficients = np.array(winner.coefficients)
        result, notes = write(coefficients)
        notes |= {"metric": about["metric"], "better": about["better"]}
        if judge.reestimates:
            judge.reestimate(result)
            notes["batch_norm"] = "statistics re-estimated by the metric's hook"
    notes |= {"kept": winner._asdict(), "why": why, "ended": why_ended}
    notes |= {"evaluations": len(scores), "table": rows}
    return coefficients, result, notes


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Turn a stop signal into StoppedError, after the contexts inside the block have cleaned up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)  # no Exception, because a user's metric may catch any of those

    try:
        with handled(interrupt):
            yield
    except KeyboardInterrupt as stop:
        raise StoppedError(_number_of(stop)) from None


def _number_of(stop: KeyboardInterrupt) -> int:
    """Return the number of the signal; one that a metric raised itself is ctrl-C."""
    return int(stop.args[0]) if stop.args else signal.SIGINT


def _command(checkpoints: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the command line for a call of ``merge`` with these arguments."""
    parameters = inspect.signature(merge).parameters
    words = ["dimred", "merge", *checkpoints]
    for name, value in options.items():
        if value == parameters[name].default:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(getattr(value, "__qualname__", str(value)))
    return shlex.join(words)


def _digest_of(checkpoints: Sequence[SavedNetwork]) -> str:
    """Compute one digest for all files of the checkpoints, in order."""
    digests = [digest for checkpoint in checkpoints for digest in sample_digests(checkpoint)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _open_rest(path: Path, inputs: Sequence[SavedNetwork]) -> SavedNetwork:
    """Open the checkpoint to copy all but the weights from; if it is one of the inputs, return that input."""
    rest = read_one(path)

    def is_rest(checkpoint: SavedNetwork) -> bool:
        return len(checkpoint.files) == len(rest.files) and all(map(is_name_of, rest.files, checkpoint.files))

    return next(filter(is_rest, inputs), rest)
