"""End stage 1 before its last epoch, when the average of its snapshots gains no more on ``val``."""

import logging
from typing import Any

import numpy as np
from mindspore import nn

from dimred.averaging.choice import Behind, Candidate, Measured, Selection, behind, choose
from dimred.averaging.windows import halved_windows
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StopConfig
from dimred.distributed.ranks import Ranks
from dimred.evaluation.averages import SnapshotAverages
from dimred.evaluation.evaluator import OnSplits
from dimred.launch.channel import tell_position
from dimred.train_step.network_state import moving_statistics
from dimred.trainer.states import VAL_LOSSES, RunState
from dimred.vectors.parameters import preserved

_log = logging.getLogger(__name__)

_LOSSES = f"{VAL_LOSSES}best average"  # name in a state


class Plateau:
    """Notices when measurements gain no more: a gain is one of more than a standard error, paired by sample.

    Every measurement is compared with the best so far, which is the last one that gained, so that small steps add up.

    Args:
        patience: measurements in a row without a gain.

    Attributes:
        best: the best so far.
        best_epoch: after which it was measured.
        n_without_gain: measurements since.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self.best: Candidate | None = None
        self.best_epoch = 0
        self.n_without_gain = 0

    def see(self, found: Candidate, epoch: int) -> Behind | None:
        """Take a measurement; returns how far the best so far is behind it."""
        gain = None if self.best is None else behind(self.best, found)
        if gain is None or gain.loss > gain.standard_error:
            self.best, self.best_epoch, self.n_without_gain = found, epoch, 0
        else:
            self.n_without_gain += 1
        return gain

    @property
    def is_reached(self) -> bool:
        """Whether so many measurements in a row were without a gain."""
        return self.n_without_gain >= self._patience


class AveragedStop:
    """Ends the training when its averaged weights have reached a plateau.

    The averaged weights are the uniform mean of the newest snapshots, over the window that ``choose`` takes of
    ``halved_windows``. The training's own weights and BatchNorm statistics are put back to the byte.

    Args:
        settings: the section ``stop``.
        network: that is trained.
        on: measures the network, on ``val``.
        ranks: all of them call the methods.
    """

    def __init__(self, settings: StopConfig, network: nn.Cell, on: OnSplits, ranks: Ranks) -> None:
        self._every_epochs, self._network, self._on, self._ranks = settings.every_epochs, network, on, ranks
        self._plateau = Plateau(settings.patience)
        self._measured_epoch, self._record = 0, dict[str, Any]()

    @property
    def reason(self) -> str | None:
        """Why the training is to end; None while it is to go on."""
        if not self._plateau.is_reached:
            return None
        return (
            f"in {self._plateau.n_without_gain} measurements in a row the averaged weights gained no more than a "
            f"standard error on 'val' over those of epoch {self._plateau.best_epoch}"
        )

    def is_due(self, epoch: int) -> bool:
        """Return whether to measure after an epoch: once, as a resumed run may have fewer snapshots left."""
        return epoch % self._every_epochs == 0 and epoch != self._measured_epoch

    def measure(self, epoch: int, step: int, snapshots: CheckpointSeries | None) -> None:
        """Measure the averaged weights after an epoch; the state that is saved then has the outcome.

        Args:
            epoch: that has ended.
            step: of the run.
            snapshots: on rank 0; None elsewhere.
        """
        averages = SnapshotAverages(snapshots, self._on.layout, self._ranks)
        if len(averages.steps) < 2:
            return
        selection = Selection()

        def on_val_of(weights: np.ndarray) -> Measured:
            tell_position("measuring averaged weights after", step)
            return self._on.on_val_of(weights)

        with preserved([*self._network.trainable_params(), *moving_statistics(self._network)]):
            for window in halved_windows(len(averages.steps)):
                averages.measure(window, selection, on_val_of)
        found = choose(selection.candidates)
        gain, plateau = self._plateau.see(found, epoch), self._plateau
        told = f"epoch: {epoch} averaged: {found.name}: loss {found.loss:.4f} +- {found.standard_error:.4f} on 'val'"
        _log.info(told + ("" if plateau.best is found else f"; no gain since epoch {plateau.best_epoch}"))
        self._measured_epoch = epoch
        self._record = {
            "averaged_loss": found.loss,
            "averaged_standard_error": found.standard_error,
            "averaged_window": round(found.effective_size),
            "averaged_gain": gain and gain.loss,
            "averaged_gain_standard_error": gain and gain.standard_error,
            "averaged_seconds": selection.seconds,
        }

    def record(self, epoch: int) -> dict[str, Any]:
        """Return what was measured after an epoch, for the metrics."""
        return self._record if epoch == self._measured_epoch else {}

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Return the losses of the best measurement so far, for the state to resume from."""
        return {} if self._plateau.best is None else {_LOSSES: self._plateau.best.losses}

    def progress(self) -> dict[str, Any] | None:
        """Return the last measurement, the best one, and how many came after it, as plain JSON values."""
        plateau = self._plateau
        if plateau.best is None:
            return None
        return {
            "measured_epoch": self._measured_epoch,
            "record": self._record,
            "best": plateau.best[:2],
            "best_epoch": plateau.best_epoch,
            "without_gain": plateau.n_without_gain,
        }

    def restore(self, found: RunState) -> None:
        """Go on from a state; one of a run that had measured nothing yet leaves everything as it is."""
        known, plateau = found.progress.get("stop"), self._plateau
        if known is not None:
            name, width = known["best"]
            plateau.best = Candidate(name, width, found.arrays[_LOSSES])
            plateau.best_epoch, plateau.n_without_gain = known["best_epoch"], known["without_gain"]
            self._measured_epoch, self._record = known["measured_epoch"], known["record"]
