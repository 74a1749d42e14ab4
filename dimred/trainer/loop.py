"""The one loop over epochs, for both stages."""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from mindspore import nn

from dimred.data.batches import Readable, read_batches
from dimred.distributed.ranks import ALONE, Intent, Ranks
from dimred.errors import DataError, StoppedError
from dimred.launch.channel import COMPUTING, READING, StageBar, tell_alive, tell_position
from dimred.launch.signals import StopSignals


@dataclass
class Place:
    """Where a training is: it goes on with the step after ``done`` of ``epoch``.

    Attributes:
        epoch: from 1.
        done: steps of that epoch that are done.
        seconds: wall seconds those steps took, in all processes that ran them.
    """

    epoch: int = 1
    done: int = 0
    seconds: float = 0.0

    def n_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps from the beginning of the run to here."""
        return (self.epoch - 1) * steps_per_epoch + self.done

    def next_epoch(self) -> None:
        """Move to the beginning of the next epoch."""
        self.epoch, self.done, self.seconds = self.epoch + 1, 0, 0.0


class Observer:
    """What a training does beside its steps. This one does nothing; a training overrides what it needs."""

    @property
    def has_ended(self) -> bool:
        """Asked after each epoch: whether the training is to end there, before the last one."""
        return False

    def after_step(self, result: Any, place: Place, n_samples: int) -> str | None:
        """Record a step; returns the status that the progress bar shows from now on, or None to leave it.

        Args:
            result: what the step returned.
            place: the step is counted already.
            n_samples: of this rank in the step's batch.
        """
        return None

    def save(self, place: Place) -> None:
        """Save the state to resume from. All ranks call it after the same step."""

    def after_epoch(self, place: Place) -> str | None:
        """Evaluate, and record the epoch; returns the status for the progress bar, or None to leave it."""
        return None


class Images(Protocol):
    """The split that is trained on."""

    @property
    def steps_per_epoch(self) -> int: ...

    def training_epoch(self, seed: int, epoch: int) -> Readable:
        """Return the batches of an epoch; the same for the same two numbers."""


class EpochLoop:
    """Calls a step on every batch of the epochs that are left.

    Before each step the ranks agree, in one all-reduce, whether all of them have a batch and none was told to stop. So
    a rank that can't read its data, or receives SIGTERM, takes the others with it after the same step: the state of
    that step is saved, no rank waits in a collective that another never enters, and no sum lacks a part.

    Args:
        name: shown by the progress bar.
        step: the cell that is called with each batch.
        images: the batches.
        seed: of their order.
        n_epochs: the last epoch.
        first_order: added to the epoch's number to give the number of its order.
        save_every_steps: steps of an epoch from one saved state to the next; an epoch ends with one anyway.
        ranks: all of them run the loop.
        signals: entered by the caller; not entered, they never stop the loop.
    """

    def __init__(
        self,
        name: str,
        step: nn.Cell,
        images: Images,
        *,
        seed: int,
        n_epochs: int,
        first_order: int = 0,
        save_every_steps: int | None = None,
        ranks: Ranks = ALONE,
        signals: StopSignals | None = None,
    ):
        self.name, self.step, self.images = name, step, images
        self.seed, self.n_epochs, self.first_order = seed, n_epochs, first_order
        self.save_every_steps = save_every_steps
        self.ranks = ranks
        self.signals = StopSignals() if signals is None else signals

    def run(self, place: Place, observer: Observer) -> None:
        """Run from ``place`` to the end of the last epoch; ``place`` moves along.

        Raises:
            DataError: a rank could not read its batch; the state was saved.
            StoppedError: a rank received SIGTERM or ctrl-C; the state was saved.
        """
        per_epoch = self.images.steps_per_epoch
        with StageBar(self.name, self.n_epochs * per_epoch, place.n_steps(per_epoch)) as bar:
            while place.epoch <= self.n_epochs:
                if place.done < per_epoch:
                    self._finish_epoch(place, observer, bar)
                bar.status(observer.after_epoch(place))
                self.signals.reinstall()
                place.next_epoch()
                if observer.has_ended:
                    return

    def _finish_epoch(self, place: Place, observer: Observer, bar: StageBar) -> None:
        per_epoch, every = self.images.steps_per_epoch, self.save_every_steps
        order = self.first_order + place.epoch
        batches = _batches_after(place.done, read_batches(lambda: self.images.training_epoch(self.seed, order)))
        before, started = place.seconds, time.perf_counter()
        self.step.set_train(True)
        with self.signals.held():
            while place.done < per_epoch:
                batch = self._next_batch(batches, place, observer)
                result = self.step(*batch)
                self.signals.reinstall()
                place.done += 1
                place.seconds = before + time.perf_counter() - started
                bar.step(observer.after_step(result, place, len(batch[0])))
                if place.done == per_epoch or (every and place.done % every == 0):
                    observer.save(place)
            self._agree(place, observer, None)

    def _next_batch(self, batches: Iterator[Any], place: Place, observer: Observer) -> Any:
        step, fault, batch = place.n_steps(self.images.steps_per_epoch) + 1, None, ()
        tell_position(READING, step)
        try:
            batch = next(batches)
        except StopIteration:
            fault = DataError(f"epoch {place.epoch} has only {place.done} batches: the data changed during the run")
        except DataError as error:
            fault = error
        self._agree(place, observer, fault)
        tell_position(COMPUTING, step)
        return batch

    def _agree(self, place: Place, observer: Observer, fault: DataError | None) -> None:
        """Save and leave, on every rank, where one has a fault or was told to stop."""
        self.signals.reinstall()
        stop = Intent.STEP if self.signals.received is None else Intent.STOP
        agreed = self.ranks.agree(stop if fault is None else Intent.FAIL)
        if agreed is Intent.STEP:
            return
        observer.save(place)
        if agreed is Intent.FAIL and (told := self.ranks.first_fault(fault)):
            raise fault or told
        raise StoppedError(self.signals.received or int(signal.SIGTERM))


def _batches_after(done: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the rest of an epoch. Batches that are done are read again, so that the rest is augmented as before."""
    for _ in range(done):
        next(batches, None)
        tell_alive()
    yield from batches
