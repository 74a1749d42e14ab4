"""``dimred.merge``: the best one network out of a folder of checkpoints, chosen by the user's metric.

Windows and profiles, a greedy soup, and a search in the checkpoints' own coordinates are scored on the split
``search``; the best few again on ``select``, which decides; what was kept on ``test``.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError, StoppedError, check_number
from dimred.files.atomic import remove_leftovers
from dimred.merging.average import (
    Sources,
    average,
    check_is_new,
    find_checkpoints,
    record_of,
    record_path,
    write_record,
)  # fmt: skip
from dimred.merging.contest import PLAIN, Contest, Progress, final, table, work_folder
from dimred.merging.inputs import select
from dimred.merging.metric import FunctionMetric, Metric
from dimred.merging.metric_process import CommandMetric, FileMetric
from dimred.merging.output import check_target
from dimred.merging.search import (
    BudgetSpentError,
    Coordinates,
    SearchOptions,
    check_options,
    greedy_soup,
    profile_candidates,
    search,
    soup_members,
    window_candidate,
    window_candidates,
)  # fmt: skip
from dimred.merging.trials import Candidate

__all__ = ["METHODS", "merge"]

METHODS = ("plain", "soup", "search")
_FINALISTS = 3


def merge(
    checkpoints: Sources,
    out: str | os.PathLike[str],
    *,
    metric: str | Callable[..., Any] | None = None,
    metric_command: str | None = None,
    minimize: bool = False,
    maximize: bool = False,
    budget: int = 300,
    methods: Sequence[str] = METHODS,
    margin: float = 2.0,
    timeout: float = 3600.0,
    profile: str | None = None,
    last: int | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    order: str = "step",
    dtype: str | None = None,
    on_trial: Callable[[Progress], None] = lambda progress: None,
    **options: Any,
) -> dict[str, Any]:
    """Make the best network out of checkpoints; without a metric, their average.

    Beside ``out`` come its record, ``OUT.json``, and the folder ``OUT.merge`` with all trials. The same call goes on
    with a search that was killed.

    Args:
        checkpoints: a folder, or files, folders of shards, globs.
        out: the file, or for shards the folder, to write; must not exist.
        metric: ``FILE.py:NAME``; or a function, which runs in this process, without a timeout. See ``FunctionMetric``.
        metric_command: a command instead; see ``CommandMetric``.
        minimize, maximize: which is better, lower or higher; one of them.
        budget: evaluations on ``search``.
        methods: of ``plain``, ``soup``, ``search``; ``plain`` is always there.
        margin: standard errors by which soup or search must beat the best plain candidate on ``select``.
        timeout: seconds for one evaluation.
        profile, last, from_step, to_step, order, dtype: as ``average``.
        on_trial: is told of each trial.
        options: of the search; see ``SearchOptions``.

    Returns:
        The record.

    Raises:
        ConfigError: an argument is not allowed.
        CheckpointError: a checkpoint is damaged, or of another network.
        SearchError: the metric fails on everything.
        FaultError: a file can't be written.
        StoppedError: Ctrl-C; the best so far is in ``out``.
    """
    if metric is None and metric_command is None:
        if minimize or maximize:
            raise ConfigError("--minimize and --maximize need --metric or --metric-command")
        window: dict[str, Any] = {"last": last, "from_step": from_step, "to_step": to_step, "order": order}
        return average(checkpoints, out, profile=profile or "uniform", dtype=dtype, **window)
    target, settings = Path(out), SearchOptions(**options)
    check_options(settings)
    check_number("--budget", budget, at_least=1, whole=True)
    check_number("--margin", margin, at_least=0)
    check_number("--timeout", timeout, above=0)
    if profile is not None:
        raise ConfigError(f"--profile is {profile!r}; with a metric, windows and profiles are chosen by it")
    if minimize == maximize:
        raise ConfigError("say which is better: --minimize or --maximize, one of them")
    if not {*methods} <= {*METHODS}:
        raise ConfigError(f"--methods is {','.join(methods)!r}; allowed: {', '.join(METHODS)}")
    if not _was_interrupted(target):
        check_is_new(target)
    chosen = select(find_checkpoints(checkpoints, order), last, from_step, to_step)
    check_target(target, chosen[-1], dtype)
    work = work_folder(target)
    work.mkdir(exist_ok=True)
    remove_leftovers(work)
    inputs = record_of(chosen, np.ones(len(chosen)), chosen[-1], dtype)
    described = {
        "metric": _identity(metric) if metric_command is None else metric_command,
        "better": "lower" if minimize else "higher",
        "options": settings._asdict(),
    }
    about = described | {"dtype": dtype, "checkpoints": [one["sample_sha256"] for one in inputs["checkpoints"]]}
    judge = _metric(metric, metric_command, timeout, work / "metric.log")
    contest = Contest(chosen, target, dtype, judge, -1 if minimize else 1, budget, about, on_trial)
    with contextlib.closing(contest):
        stopped = None
        try:
            found = _run(contest, settings, methods, margin)
        except KeyboardInterrupt:
            best = contest.best()
            if best is None:
                raise StoppedError(2, "nothing was scored yet") from None
            found = {"kept": best.candidate, "why": "the best on search so far", "ended": "ctrl-C", "table": []}
            stopped = StoppedError(2, f"the best so far is in {target}; the same command goes on")
        contest.write(found["kept"])
    record = record_of(chosen, np.array(found["kept"].coefficients), chosen[-1], dtype) | described | found
    if judge.reestimates:
        record["batch_norm"] = "statistics re-estimated by the metric's hook"
    record |= {"kept": found["kept"]._asdict(), "evaluations": len(contest.trials.done), "interrupted": bool(stopped)}
    write_record(target, record)
    if stopped:
        raise stopped
    return record


def _run(contest: Contest, settings: SearchOptions, methods: Sequence[str], margin: float) -> dict[str, Any]:
    """All methods, then the final: what is kept, why, and the table."""
    steps = [checkpoint.step for checkpoint in contest.checkpoints]
    searched: list[Candidate] = []
    ended = "all candidates were tried"
    try:
        for candidate in window_candidates(steps):
            contest.on_search(candidate)
        members = np.flatnonzero(contest.ranked("window")[0].candidate.coefficients)
        for candidate in profile_candidates(steps, int(members[0]), int(members[-1]) + 1):
            contest.on_search(candidate)
        if "soup" in methods:
            _soup(contest, steps)
        if "search" in methods:
            searched, ended = _search(contest, settings)
    except BudgetSpentError:
        ended = "the budget is spent"
    finalists = [trial.candidate for trial in [*contest.ranked(*PLAIN)[:_FINALISTS], *contest.ranked("soup")[:1]]]
    finalists += searched
    kept, reference, why = final(contest, finalists, margin)
    return {"kept": kept, "why": why, "ended": ended, "table": table(contest, finalists, kept, reference)}


def _soup(contest: Contest, steps: Sequence[int]) -> None:
    members = soup_members(len(steps))

    def score(chosen: tuple[float, ...]) -> float:
        whole = np.zeros(len(steps))
        whole[members] = chosen
        numbers = np.flatnonzero(whole)
        candidate = Candidate("soup", f"soup of {len(numbers)}", tuple(whole.tolist()))
        if len(numbers) == 1:
            candidate = window_candidate(steps, int(numbers[0]), int(numbers[0]) + 1)
        return contest.signed(contest.on_search(candidate))

    greedy_soup(len(members), score)


def _search(contest: Contest, settings: SearchOptions) -> tuple[list[Candidate], str]:
    """The finalists of the search around the best plain candidate, and why it ended."""
    plain = contest.ranked(*PLAIN)
    coefficients = np.array(plain[0].candidate.coefficients)
    coordinates = Coordinates(contest.gram(), coefficients / coefficients.sum(), settings.components)
    if coordinates.k == 0:
        return [], "the checkpoints are all equal"
    error = (plain[0].score.error if plain[0].score else None) or 0.0
    # Where a metric gives no error, a tenth of the spread of the plain candidates is the unit of the prior.
    unit = error or (float(np.std([contest.signed(trial) for trial in plain])) / 10)
    found = search(coordinates, settings, contest.on_search, contest.signed, unit, error)
    return [*(trial.candidate for trial in found.best[: _FINALISTS - 1]), found.centre], found.ended


def _metric(metric: str | Callable[..., Any] | None, command: str | None, timeout_seconds: float, log: Path) -> Metric:
    if command is not None:
        if metric is not None:
            raise ConfigError("--metric and --metric-command can't both be given")
        return CommandMetric(command, timeout_seconds, log)
    return FileMetric(metric, timeout_seconds, log) if isinstance(metric, str) else FunctionMetric(metric)  # type: ignore[arg-type]


def _identity(metric: str | Callable[..., Any] | None) -> str:
    """What tells one metric from another: the file's name and digest, or the function's name."""
    if not isinstance(metric, str):
        return getattr(metric, "__qualname__", repr(metric))
    path = Path(metric.rpartition(":")[0])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "missing"
    return f"{metric} ({digest})"


def _was_interrupted(out: Path) -> bool:
    """Whether the result is the best so far of an interrupted call."""
    try:
        return bool(json.loads(record_path(out).read_bytes()).get("interrupted"))
    except (OSError, ValueError, AttributeError):
        return False
