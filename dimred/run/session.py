"""One run in one folder, on one rank: what it resumes from, what it records, and how it reports its faults."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

from dimred.config import StageConfig, config_text
from dimred.console import heartbeat, say
from dimred.distributed.ranks import Ranks
from dimred.distributed.share import share_state
from dimred.errors import ConfigError
from dimred.files.atomic import atomic_write, retry
from dimred.files.metrics_file import read_metrics
from dimred.files.run_names import CONFIG, METRICS, MINDSPORE_LOG, TENSORBOARD
from dimred.launch.signals import StopSignals
from dimred.models.factory import call_factory
from dimred.run.device import redirect_native_stderr
from dimred.run.faults import translate_errors
from dimred.run.folder import run_folder, write_versions
from dimred.run.loop import Place
from dimred.run.metrics import MetricsLog, TensorBoard, cut_metrics
from dimred.run.resume_check import refuse_changes
from dimred.run.states import RunState, RunStates, read_state
from dimred.vectors.parameters import from_arrays


class Session:
    """The files that every run has, and the rules for resuming.

    Args:
        out: folder of the run, locked by the caller.
        settings: the resolved configuration.
        ranks: all of them make a session; rank 0's states count, and rank 0 alone saves.
        signals: entered by the caller.

    Attributes:
        identity: what a run that is resumed must have in common with the one that began. A program adds its data.
    """

    def __init__(self, out: Path, settings: StageConfig, ranks: Ranks, signals: StopSignals):
        self.out, self.settings, self.ranks, self.signals = out, settings, ranks, signals
        self.states = RunStates(out)
        self.metrics_file = out / METRICS
        self.identity: dict[str, Any] = settings.model_dump(mode="json") | {"--devices": ranks.group_size}
        self._mark: dict[str, Any] | None = None

    def restore(
        self, parameters: Sequence[Parameter], place: Place, steps_per_epoch: int, allowed: Sequence[str]
    ) -> RunState | None:
        """Take up the newest state: parameters, place, and where the metrics ended; None where there is no state.

        Raises:
            ConfigError: the configuration differs in a key that is not ``allowed`` to, or epochs have other lengths.
            CheckpointError: the state is of another network.
        """
        newest = self.ranks.run_on_rank_zero(lambda: self.states.newest(say))
        found = share_state(newest, self.ranks, read_state)
        if found is None:
            return None
        if self.ranks.is_rank_zero:
            refuse_changes(found.progress["run"], self.identity, allowed)
        place.epoch, place.done, place.seconds = (found.progress[key] for key in ("epoch", "done", "seconds"))
        if found.step != place.n_steps(steps_per_epoch):
            raise ConfigError(
                f"an epoch has {steps_per_epoch} steps, but the run came to step {place.done} of epoch {place.epoch} "
                f"in {found.step} steps, and its rate, snapshots and states go by steps; give the data, the batch size "
                "and the devices that it was begun with, or begin a new run in another folder"
            )
        from_arrays(parameters, found.arrays, str(found.path))
        self._mark = found.progress["metrics"]
        say(f"going on after step {place.done} of epoch {place.epoch}, from {found.path}")
        return found

    def write_configuration(self) -> None:
        """Write ``config.yaml`` and ``versions.json``."""
        atomic_write(self.out / CONFIG, config_text(self.settings))
        write_versions(self.out)

    def open_metrics(self) -> MetricsLog:
        """The metrics, cut where the restored state was saved; a run that begins finds none."""
        cut_metrics(self.metrics_file, self._mark, self.ranks)
        listeners: list[Any] = []
        if self.settings.tensorboard and self.ranks.is_rank_zero:
            listeners.append(TensorBoard(self.out / TENSORBOARD, read_metrics(self.metrics_file)))
        if self.settings.callback is not None and self.ranks.is_rank_zero:
            listeners.append(call_factory(self.settings.callback, self.out, key="callback"))
        return MetricsLog(self.metrics_file, listeners)

    def save(self, step: int, place: Place, arrays: dict[str, np.ndarray], metrics: MetricsLog, **more: Any) -> None:
        """Save the state after ``step`` steps, on rank 0.

        Args:
            step: steps done, of all epochs.
            place: to go on from.
            arrays: name -> value.
            metrics: the run's.
            more: plain JSON values for ``RunState.progress``.
        """
        progress: Mapping[str, Any] = {
            "epoch": place.epoch, "done": place.done, "seconds": place.seconds,
            "run": self.identity, "metrics": metrics.mark(), **more,
        }  # fmt: skip
        self.ranks.run_on_rank_zero(lambda: retry(lambda: self.states.save(step, arrays, progress)))


@contextmanager
def open_session(out: Path, settings: StageConfig, ranks: Ranks, *, resume: bool) -> Iterator[Session]:
    """Make or reopen the folder of a run, hold its lock, and translate the run's faults into errors with a remedy.

    Raises:
        ConfigError: the folder holds something already; RunError: another process is at work there.
        FaultError, StoppedError: from the block, see ``translate_errors``.
    """
    with (
        run_folder(out, resume=resume),
        redirect_native_stderr(out / MINDSPORE_LOG),
        StopSignals() as signals,
        translate_errors(RunStates(out) if ranks.is_rank_zero else None),
        heartbeat("preparing the run"),
    ):
        yield Session(out, settings, ranks, signals)
