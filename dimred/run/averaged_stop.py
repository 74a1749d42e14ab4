"""When stage 1 ends before its last epoch: when the average of its snapshots gains no more on ``val``."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from mindspore import nn

from dimred.config import StopConfig
from dimred.console import say
from dimred.data.batches import Batches
from dimred.distributed.ranks import Ranks
from dimred.evaluate.averages import SnapshotAverages
from dimred.evaluate.evaluator import OnSplits
from dimred.evaluate.selection import Candidate, Selection, behind
from dimred.launch.channel import tell_position
from dimred.run.states import RunState
from dimred.train_step.network_state import moving_statistics
from dimred.vectors.parameters import from_arrays, preserved
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries

_SHARES = (1, 2, 4, 8)  # the windows hold all snapshots that are kept, half of them, ...
_LOSSES = "averaged:losses"  # name in a state


class NeverStop:
    """Trains to the last epoch and measures nothing.

    Attributes:
        reason: why the training is to end; None while it is to go on.
    """

    reason: str | None = None

    def measure(self, epoch: int, step: int, snapshots: CheckpointSeries | None) -> dict[str, Any]:
        """What is recorded of the averaged weights after an epoch."""
        return {}

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Arrays for the state to resume from."""
        return {}

    def progress(self) -> dict[str, Any] | None:
        """Plain JSON values for it."""
        return None

    def restore(self, found: RunState) -> None:
        """Go on from a state."""


class AveragedStop(NeverStop):
    """Ends the training when its averaged weights have not gained more than a standard error for a while.

    The averaged weights are the uniform mean of the newest snapshots, over the window that ``Selection`` chooses among
    four. A measurement gains where its loss on ``val`` is below that of the best so far by more than one standard error
    of the difference, paired by sample; it is the best so far then. The training's own weights and BatchNorm statistics
    are put back to the byte.

    Args:
        settings: the section ``stop``.
        network: that is trained.
        images: by split; ``train`` and ``val``.
        seed: of the order of the training images that statistics are re-estimated on.
        ranks: all of them call the methods.
    """

    def __init__(
        self, settings: StopConfig, network: nn.Cell, images: Mapping[str, Batches], seed: int, ranks: Ranks
    ) -> None:
        self._settings, self._network, self._ranks = settings, network, ranks
        self._layout = WeightLayout.from_network(network)
        self._on = OnSplits(network, images, seed=seed, n_batches=settings.reestimate_batches, ranks=ranks)
        self._best: Candidate | None = None
        self._best_epoch = 0
        self._n_without_gain = 0

    def measure(self, epoch: int, step: int, snapshots: CheckpointSeries | None) -> dict[str, Any]:
        """Measure the averaged weights where that is due, and judge them.

        Args:
            epoch: that has ended.
            step: of the run.
            snapshots: on rank 0; None elsewhere.
        """
        averages = SnapshotAverages(snapshots, self._layout, self._ranks)
        n = len(averages.steps)
        if epoch % self._settings.every_epochs or n < 2:
            return {}
        selection = Selection()
        with preserved([*self._network.trainable_params(), *moving_statistics(self._network)]):
            for window, weights in averages.uniform(n, {n // share for share in _SHARES if n // share > 1}):
                tell_position("measuring averaged weights after", step)
                selection.measure(averages.name(window), averages.width(window), self._losses, weights)
        found = selection.choose()
        record = {
            "averaged_loss": found.loss,
            "averaged_standard_error": found.standard_error,
            "averaged_window": round(found.width),
            **self._judge(found, epoch),
            "averaged_seconds": selection.seconds,
        }
        gain = "" if self._best is found else f"; no gain over epoch {self._best_epoch}"
        say(
            f"epoch: {epoch} averaged: {found.name}: loss {found.loss:.4f} +- {found.standard_error:.4f} on 'val'{gain}"
        )
        return record

    def _losses(self, weights: np.ndarray) -> np.ndarray:
        from_arrays(self._network.trainable_params(), self._layout.unflatten(weights), "an average of the snapshots")
        self._on.reestimate()
        return self._on.losses("val")

    def _judge(self, found: Candidate, epoch: int) -> dict[str, float | None]:
        """Count the measurements without a gain; returns what was gained over the best so far."""
        gained = None if self._best is None else behind(self._best, found)
        if gained is None or gained.loss > gained.standard_error:
            self._best, self._best_epoch, self._n_without_gain = found, epoch, 0
        else:
            self._n_without_gain += 1
        if self._n_without_gain >= self._settings.patience:
            self.reason = (
                f"in {self._n_without_gain} measurements in a row the averaged weights gained no more than a standard "
                f"error on 'val' over those of epoch {self._best_epoch}"
            )
        return {
            "averaged_gain": gained and gained.loss,
            "averaged_gain_standard_error": gained and gained.standard_error,
        }

    def state_arrays(self) -> dict[str, np.ndarray]:
        """The losses of the best measurement so far."""
        return {} if self._best is None else {_LOSSES: self._best.losses}

    def progress(self) -> dict[str, Any] | None:
        """Which measurement was the best, and how many came after it."""
        if self._best is None:
            return None
        name, width, _ = self._best
        return {"name": name, "width": width, "epoch": self._best_epoch, "without_gain": self._n_without_gain}

    def restore(self, found: RunState) -> None:
        """Go on from a state; one of a run that had measured nothing yet leaves everything as it is."""
        known = found.progress.get("stop")
        if known is not None:
            self._best = Candidate(known["name"], known["width"], found.arrays[_LOSSES])
            self._best_epoch, self._n_without_gain = known["epoch"], known["without_gain"]
