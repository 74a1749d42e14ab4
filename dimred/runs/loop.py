"""The one loop over epochs, for both stages."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Protocol

from dimred.data.batches import Batches, read_batches
from dimred.distributed.ranks import ALONE, Intent, Ranks
from dimred.errors import DataError, StoppedError
from dimred.launch.channel import COMPUTING, READING, StageBar, tell_alive, tell_position
from dimred.launch.signals import StopSignals
from dimred.train_step.protocol import Result, Step

_log = logging.getLogger(__name__)


@dataclass
class Progress:
    """A run's position: its current epoch, and how many of that epoch's steps are done.

    Attributes:
        epoch: number of the epoch, from 1.
        done: steps of that epoch that are done.
        seconds: wall seconds of those steps, including those made before a resume.
    """

    epoch: int = 1
    done: int = 0
    seconds: float = 0.0

    def n_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps from the beginning of the run to this position."""
        return (self.epoch - 1) * steps_per_epoch + self.done

    def next_epoch(self) -> None:
        """Move to the beginning of the next epoch."""
        self.epoch = self.epoch + 1
        self.done = 0
        self.seconds = 0.0


class Observer(Protocol):
    """The hooks that the loop calls between the steps."""

    @property
    def has_ended(self) -> bool:
        """Return whether training ends after this epoch although it is not the last one; by default never."""
        return False

    def reads_after(self, done: int) -> bool:
        """Return whether ``after_step`` must run after step ``done`` before the next one starts; by default never."""
        return False

    def after_step(self, result: Result, progress: Progress) -> str | None:
        """Record a step that was made, and return a new status for the progress bar, or None to leave it.

        It is called up to ``read_every_steps`` steps later, when the host waits for the device anyway. ``progress`` is
        the position after the step.
        """

    def save(self, progress: Progress) -> None:
        """Save the state to resume from; all ranks call this after the same step.

        After an epoch's last step it comes before ``after_epoch``, so a resume runs ``after_epoch`` again.
        """

    def after_epoch(self, progress: Progress) -> str | None:
        """Evaluate and record the epoch, and return a new status for the progress bar, or None to leave it."""


@dataclass(eq=False)
class EpochLoop:
    """The loop that calls a step on every batch of the remaining epochs.

    If a rank can't read its data, or receives a signal such as SIGTERM, all ranks save the state after the same step
    and end. The ranks vote on this inside the steps (see ``Ballot``), or before each step if there is no ballot. The
    host waits for the device every ``read_every_steps`` steps, and when something is saved or measured.

    Attributes:
        name: shown by the progress bar.
        step: called with each batch.
        images: the training split; its batches are the same for the same seed and order.
        seed: determines the order of the batches.
        n_epochs: the last epoch.
        first_order: offset of the epochs' numbers in the batches' orders: epoch e has the order ``first_order + e``.
        save_every_steps: steps between saved states within an epoch; its end is always saved. None saves only the end.
        read_every_steps: steps between reads of the device within an epoch.
        ranks: all of them run the loop.
        signals: the stop signals; they end the loop only if the caller has entered this context.
        after_launch: called once a step is handed to the device, before its result is there.
    """

    name: str
    step: Step
    images: Batches
    _: KW_ONLY
    seed: int
    n_epochs: int
    first_order: int = 0
    save_every_steps: int | None = None
    read_every_steps: int = 1
    ranks: Ranks = ALONE
    signals: StopSignals = field(default_factory=StopSignals)
    after_launch: Callable[[], object] = lambda: None

    def run(self, progress: Progress, observer: Observer) -> None:
        """Run from ``progress`` to the end of the last epoch, or until ``observer.has_ended``; update ``progress``.

        Raises:
            DataError: a rank could not read its batch; the state was saved.
            StoppedError: a rank received SIGTERM, ctrl-C or SIGHUP; the state was saved.
        """
        per_epoch = self.images.steps_per_epoch
        if self.step.ballot is not None:
            every = self.read_every_steps
            _log.info(f"a fault or a signal on one rank ends the others within {every} steps (read_every_steps)")
        with StageBar(self.name, self.n_epochs * per_epoch, progress.n_steps(per_epoch)) as bar:
            while progress.epoch <= self.n_epochs:
                if progress.done < per_epoch:  # not if the run was resumed after the epoch's last step
                    self._finish_epoch(progress, observer, bar)
                bar.status(observer.after_epoch(progress))
                self.signals.reinstall()
                progress.next_epoch()
                if observer.has_ended:
                    return

    def _finish_epoch(self, progress: Progress, observer: Observer, bar: StageBar) -> None:
        per_epoch = self.images.steps_per_epoch
        order = self.first_order + progress.epoch
        make = partial(self.images.training_epoch, self.seed, order)
        batches = read_batches(make, progress.done, at_skipped=tell_alive)
        batch: Any = ()
        fault = None
        launched = list[Result]()  # the results that are not read yet
        started = time.perf_counter() - progress.seconds
        ballot = None  # a failing rank repeats its last batch, so before the first step all agree that each has one
        with self.signals.held():
            while progress.done < per_epoch:
                step = progress.n_steps(per_epoch) + len(launched) + 1
                tell_position(READING, step)
                if fault is None:
                    batch, fault = _next_batch(batches, batch, progress)
                    if fault is not None:
                        # Give it as many micro-batches as the other ranks have: each may run a collective.
                        rows = self.images.rows_of_step(progress.done + len(launched) + 1)
                        batch = tuple(part[:rows] for part in batch)
                self.signals.reinstall()
                intent = self._intent(fault)
                if ballot is None and self.ranks.agree(intent) is not Intent.STEP:
                    break
                if ballot is not None and intent is not Intent.STEP:
                    ballot.vote_to_leave()
                tell_position(COMPUTING, step)
                launched.append(self.step(*batch))
                self.signals.reinstall()
                ballot = self.step.ballot
                self.after_launch()
                bar.step()
                is_due = self._is_read_due(progress.done + len(launched), observer)
                if is_due and not self._read(launched, progress, started, observer, bar):
                    break
            if launched:  # without a ballot the loop leaves before these are read
                self._read(launched, progress, started, observer, bar)
            self._agree(progress, observer, fault)

    def _is_read_due(self, done: int, observer: Observer) -> bool:
        """Return whether the host waits for the device after ``done`` steps of an epoch; all ranks agree."""
        is_due = done % self.read_every_steps == 0 or self._is_save_due(done)
        return is_due or observer.reads_after(done)

    def _is_save_due(self, done: int) -> bool:
        every = self.save_every_steps
        return done == self.images.steps_per_epoch or (every is not None and done % every == 0)

    def _read(
        self, launched: list[Result], progress: Progress, started: float, observer: Observer, bar: StageBar
    ) -> bool:
        """Count and record the steps that were made, and save if due; return whether all launched steps were made."""
        n_made = len(launched)
        ballot = self.step.ballot
        if ballot is not None:
            n_made = ballot.count()
        for result in launched[:n_made]:
            progress.done += 1
            status = observer.after_step(result, progress)
            if status is not None:
                bar.status(status)
        progress.seconds = time.perf_counter() - started
        all_made = n_made == len(launched)
        if all_made and self._is_save_due(progress.done):
            observer.save(progress)
        launched.clear()
        return all_made

    def _intent(self, fault: DataError | None) -> Intent:
        stop = Intent.STEP if self.signals.received is None else Intent.STOP
        return stop if fault is None else Intent.FAIL

    def _agree(self, progress: Progress, observer: Observer, fault: DataError | None) -> None:
        """Save and leave the loop, on every rank, if any rank has a fault or was told to stop."""
        self.signals.reinstall()
        agreed = self.ranks.agree(self._intent(fault))
        if agreed is Intent.STEP:
            return
        observer.save(progress)
        if agreed is Intent.FAIL and (told := self.ranks.first_fault(fault)):
            raise fault or told
        raise StoppedError(self.signals.received or int(signal.SIGTERM))


def _next_batch(batches: Iterator[Any], last: Any, progress: Progress) -> tuple[Any, DataError | None]:
    """Return the next batch and None; if it can't be read, the last batch and the error."""
    try:
        return next(batches), None
    except StopIteration:
        return last, DataError(f"epoch {progress.epoch} has fewer batches than before: the data changed during the run")
    except DataError as error:
        return last, error
