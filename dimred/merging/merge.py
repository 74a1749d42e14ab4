"""``dimred.merge``: the best one network out of a folder of checkpoints, chosen by the user's metric.

Windows and profiles, a greedy soup, and a search in the checkpoints' own coordinates are scored on the split
``search``; the best few again on ``select``, which decides; what was kept on ``test``.
"""

import contextlib
import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError, SearchError, SeriesError, StoppedError, check_number
from dimred.files.atomic import open_atomic, remove, remove_leftovers, rename_durably
from dimred.files.lock import FolderLock
from dimred.merging.average import average, check_is_new, record_of, write_record
from dimred.merging.combine import gram_matrix
from dimred.merging.final import final, table
from dimred.merging.inputs import Checkpoint, Sources, open_checkpoints, read_record, select, work_folder
from dimred.merging.metric import FunctionMetric, Score
from dimred.merging.metric_process import ProcessMetric
from dimred.merging.output import check_target, name_faults, sample_digest, write_network
from dimred.merging.search import SearchOptions, run_plain, run_search, run_soup
from dimred.merging.trials import PLAIN, BudgetSpentError, Candidate, Progress, Trials

_FINALISTS = 3  # windows and profiles that are scored again


def merge(
    checkpoints: Sources,
    out: str | os.PathLike[str],
    *,
    metric: str | Callable[..., Any] | None = None,
    metric_command: str | None = None,
    minimize: bool = False,
    maximize: bool = False,
    budget: int = 300,
    timeout: float = 3600.0,
    profile: str | None = None,
    last: int | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    order: str = "step",
    dtype: str | None = None,
    on_trial: Callable[[Progress], None] = lambda progress: None,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """Make the best network out of checkpoints; without a metric, their average.

    Beside ``out`` come its record, ``OUT.json``, and the folder ``OUT.merge`` with all trials. The same call goes on
    with a search that was killed.

    Args:
        checkpoints: a folder, or files, folders of shards, globs.
        out: the file, or for shards the folder, to write; must not exist.
        metric: ``FILE.py:NAME``; or a function, which runs in this process, without a timeout. See ``FunctionMetric``.
        metric_command: a command instead; see ``command_metric``.
        minimize, maximize: which is better, lower or higher; one of them.
        budget: evaluations on ``search``.
        timeout: seconds for one evaluation.
        profile, last, from_step, to_step, order, dtype: as ``average``.
        on_trial: is told of each trial.
        note: is told, before the search, in which order the checkpoints are.
        options: of the search; see ``SearchOptions``.

    Returns:
        The record.

    Raises:
        ConfigError: an argument is not allowed.
        CheckpointError: a checkpoint is damaged, or of another network.
        SeriesError: fewer than two checkpoints are left to search in.
        SearchError: the metric fails on everything.
        FaultError: a file can't be written.
        StoppedError: Ctrl-C; the best so far is in ``out``.
    """
    if metric is None and metric_command is None:
        if minimize or maximize:
            raise ConfigError("--minimize and --maximize need --metric or --metric-command")
        window: dict[str, Any] = {"last": last, "from_step": from_step, "to_step": to_step, "order": order}
        return average(checkpoints, out, profile=profile or "uniform", dtype=dtype, **window)
    if unknown := options.keys() - {*SearchOptions._fields}:
        allowed = ", ".join(SearchOptions._fields)
        raise ConfigError(f"{min(unknown)!r} is no option of the search; allowed: {allowed}")
    target, settings = Path(out), SearchOptions(**options)
    settings.check()
    check_number("--budget", budget, at_least=1, whole=True)
    check_number("--timeout", timeout, above=0)
    if metric is not None and metric_command is not None:
        raise ConfigError("--metric and --metric-command can't both be given")
    if profile is not None:
        raise ConfigError(f"--profile is {profile!r}; with a metric, windows and profiles are chosen by it")
    if minimize == maximize:
        raise ConfigError("say which is better: --minimize or --maximize, one of them")
    if not read_record(target).get("interrupted"):
        check_is_new(target)
    chosen = select(open_checkpoints(checkpoints, order), last, from_step, to_step)
    if len(chosen) < 2:
        raise SeriesError(f"{chosen[0].path} is the only checkpoint that is left; a search needs two or more")
    check_target(target, chosen[-1], dtype)
    described = {
        "metric": _identity(metric) if metric_command is None else metric_command,
        "better": "lower" if minimize else "higher",
    }
    about = described | settings._asdict() | {"dtype": dtype, "digest of the checkpoints": _digest_of(chosen)}
    work = work_folder(target)
    with contextlib.ExitStack() as held:
        held.enter_context(name_faults(target))
        lock = held.enter_context(FolderLock(work, f"--out is {str(target)!r}"))
        held.callback(lock.remove)
        judge: FunctionMetric | ProcessMetric
        if callable(metric):
            judge = FunctionMetric(metric)
        else:
            option, source = ("--metric", metric) if metric is not None else ("--metric-command", metric_command)
            judge = ProcessMetric(option, str(source), timeout, work / "metric.log")
        held.callback(judge.close)
        for folder in (work, target.parent):
            remove_leftovers(folder)
        note(_order_of(chosen))
        maker = _Maker(chosen, target, dtype, judge)
        held.callback(remove, maker.path)
        interrupts = held.enter_context(_noted_interrupts())

        def after_trial(progress: Progress) -> None:
            on_trial(progress)
            if interrupts:
                raise KeyboardInterrupt

        path, sign = work / "trials.jsonl", -1 if minimize else 1
        trials = held.enter_context(contextlib.closing(Trials(path, about, maker.score, sign, budget, after_trial)))
        stopped = None
        try:
            found = _run(trials, maker, settings)
        except SearchError as error:
            raise SearchError(str(error) if callable(metric) else f"{error} (see {work / 'metric.log'})") from None
        except KeyboardInterrupt:
            best = trials.best()
            if best is None:
                raise StoppedError(2, "nothing was scored yet") from None
            found = {"kept": best.candidate, "why": "the best on search so far", "ended": "ctrl-C", "table": []}
            stopped = StoppedError(2, f"the best so far is in {target}; the same command goes on")
        maker.write(found["kept"])
        record = record_of(chosen, np.array(found["kept"].coefficients), chosen[-1], order, dtype) | described | found
        if judge.reestimates:
            record["batch_norm"] = "statistics re-estimated by the metric's hook"
        record |= {"options": settings._asdict(), "kept": found["kept"]._asdict()}
        record |= {"evaluations": len(trials), "interrupted": stopped is not None}
        write_record(target, record)
    if stopped:
        raise stopped
    return record


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Inside the block ctrl-C raises KeyboardInterrupt as ever, and is noted in the list.

    Python drops the exception where it meets a finaliser; each candidate's threads have some.
    """
    noted: list[int] = []

    def handle(number: int, _: object) -> None:
        noted.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield noted
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _order_of(checkpoints: Sequence[Checkpoint]) -> str:
    """The checkpoints in order, with their steps, for people."""
    listed = ", ".join(f"{checkpoint.step} ({checkpoint.label})" for checkpoint in checkpoints)
    return f"{len(checkpoints)} checkpoints, the oldest first: {listed}"


def _digest_of(checkpoints: Sequence[Checkpoint]) -> str:
    """One digest for all files of the checkpoints, in order."""
    digests = [sample_digest(file) for checkpoint in checkpoints for file in checkpoint.files]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _run(trials: Trials, maker: "_Maker", settings: SearchOptions) -> dict[str, Any]:
    """All methods, then the final: what is kept, why, and the table."""
    steps = [checkpoint.step for checkpoint in maker.checkpoints]
    searched: list[Candidate] = []
    try:
        run_plain(trials, steps)
        run_soup(trials, steps)
        searched, ended = run_search(trials, maker.gram(), settings)
    except BudgetSpentError:
        ended = "the budget is spent"
    best = [*trials.ranked(*PLAIN)[:_FINALISTS], *trials.ranked("soup")[:1]]
    newest = Candidate("window", "the last checkpoint", tuple(np.eye(len(steps))[-1].tolist()))
    finalists = [*(trial.candidate for trial in best), *searched, newest] if best else []
    kept, reference, why = final(trials, finalists)
    tested = [kept, reference, newest] if maker.judge.has_splits else []
    rows = table(trials, [kept, *finalists], tested, kept if maker.judge.reestimates else None)
    return {"kept": kept, "why": why, "ended": ended, "table": rows}


class _Maker:
    """Writes candidates, one at a time to ``path``, and asks the judge."""

    def __init__(
        self, checkpoints: Sequence[Checkpoint], out: Path, dtype: str | None, judge: FunctionMetric | ProcessMetric
    ) -> None:
        self.checkpoints, self.judge = checkpoints, judge
        self._out, self._dtype = out, dtype
        self.path = work_folder(out) / f"candidate{out.suffix}"

    def score(self, candidate: Candidate, split: str, reestimate: bool) -> Score:
        """What the judge says of a candidate on a split."""
        self._make(candidate, reestimate=reestimate, durable=False)
        return self.judge.score(self.path, split)

    def write(self, candidate: Candidate) -> None:
        """The candidate as the result."""
        self._make(candidate, reestimate=True, durable=True)
        remove(self._out)  # of an interrupted call
        rename_durably(self.path, self._out)

    def gram(self) -> np.ndarray:
        """The Gram matrix of the checkpoints, which is kept in a file."""
        path = work_folder(self._out) / "gram.npy"
        if not path.exists():
            gram = gram_matrix(self.checkpoints)
            with open_atomic(path) as file:
                np.save(file, gram)
        return np.asarray(np.load(path, allow_pickle=False))

    def _make(self, candidate: Candidate, *, reestimate: bool, durable: bool) -> None:
        remove(self.path)
        coefficients, template = np.array(candidate.coefficients), self.checkpoints[-1]
        write_network(self.checkpoints, coefficients, self.path, template, self._dtype, durable=durable)
        if reestimate and self.judge.reestimates:
            self.judge.reestimate(self.path)


def _identity(metric: str | Callable[..., Any] | None) -> str:
    """What tells one metric from another: the file's name and digest, or the function's name."""
    if not isinstance(metric, str):
        return getattr(metric, "__qualname__", repr(metric))
    path = Path(metric.rpartition(":")[0])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "missing"
    return f"{metric} ({digest})"
