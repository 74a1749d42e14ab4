"""End stage 1 before its last epoch, when the average of its snapshots no longer improves on ``val``."""

import logging
import math
from typing import Any

import numpy as np
from mindspore import nn

from dimred.averaging.choice import Behind, Candidate, Choice, behind
from dimred.averaging.windows import Window
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import VAL_LOSSES, RunState
from dimred.config import StopConfig
from dimred.distributed.ranks import Ranks
from dimred.evaluation.averages import SnapshotAverages
from dimred.evaluation.evaluator import Evaluator
from dimred.launch.channel import tell_position
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.parameters import preserved

_log = logging.getLogger(__name__)

_LOSSES = f"{VAL_LOSSES}best average"  # name in a state


class EarlyStop:
    """The rule that ends training when its averaged weights no longer improve on ``val``.

    The averaged weights are the uniform mean of the newer half of the snapshots, two or more (suffix averaging: Rakhlin
    et al., Making Gradient Descent Optimal for Strongly Convex Stochastic Optimization, 2012). The first measurement is
    a gain. A later one is a gain if its loss is more than a standard error, paired by sample, below the loss of the
    last gain; small improvements therefore add up. After a measurement, the weights and BatchNorm statistics from
    training are restored byte for byte.

    Args:
        config: the section ``stop``.
        network: the network being trained.
        evaluator: measures the network, on ``val``.
        ranks: all of them call the methods.

    Attributes:
        best: the last measurement that was a gain; None before the first.
        best_epoch: the epoch after which it was made.
        n_without_gain: number of measurements since then.
    """

    def __init__(self, config: StopConfig, network: nn.Cell, evaluator: Evaluator, ranks: Ranks) -> None:
        self._config = config
        self._network = network
        self._evaluator = evaluator
        self._ranks = ranks
        self.best: Candidate | None = None
        self.best_epoch = self.n_without_gain = 0
        self._measured_epoch = 0
        self._record = dict[str, Any]()

    @property
    def reason(self) -> str | None:
        """Return why training should end; None while it should continue."""
        if self.n_without_gain < self._config.patience:
            return None
        return (
            f"in {self.n_without_gain} measurements in a row the averaged weights gained no more than a standard error "
            f"on 'val' over the averaged weights of epoch {self.best_epoch}"
        )

    def is_due(self, epoch: int) -> bool:
        """Return whether to measure after an epoch that was not measured before.

        Measuring again would give another result, because a resumed run may have fewer snapshots left.
        """
        return epoch % self._config.every_epochs == 0 and epoch != self._measured_epoch

    def measure(self, epoch: int, step: int, snapshots: CheckpointSeries | None) -> None:
        """Measure the averaged weights, and log and record the outcome; do nothing with fewer than two snapshots.

        Args:
            epoch: the epoch that has ended; save its state after this call, to include the outcome.
            step: the run's steps so far.
            snapshots: the snapshots, on rank 0; None elsewhere.
        """
        averages = SnapshotAverages(snapshots, self._evaluator.layout, self._ranks)
        n = len(averages.steps)
        if n < 2:
            return
        choice = Choice(passes_each=self._evaluator.passes_each)
        with preserved([*self._network.trainable_params(), *moving_statistics(self._network)]):
            tell_position("measuring averaged weights after", step)
            average = averages.measure(Window(n - max(n // 2, 2), n), choice, self._evaluator.measure_val_of)
        self._measured_epoch = epoch
        self._record = {}
        if not math.isfinite(average.loss):
            _log.warning(f"epoch: {epoch} averaged: no average has a finite loss on 'val', so none is compared")
            return
        gain = self.add(average, epoch)
        line = (
            f"epoch: {epoch} averaged: {average.name}: loss {average.loss:.4f} +- {average.standard_error:.4f} on 'val'"
        )
        _log.info(line + ("" if self.best is average else f"; no gain since epoch {self.best_epoch}"))
        self._record = {
            "averaged_loss": average.loss,
            "averaged_standard_error": average.standard_error,
            "averaged_window": round(average.effective_size),
            "averaged_gain": gain and gain.loss,
            "averaged_gain_standard_error": gain and gain.standard_error,
            "averaged_forward_passes": choice.forward_passes,
            "averaged_seconds": choice.seconds,
        }

    def add(self, average: Candidate, epoch: int) -> Behind | None:
        """Record the average measured after an epoch, as a gain or not.

        Returns:
            How far the best earlier measurement is behind this one; None for the first.
        """
        gain = None if self.best is None else behind(self.best, average)
        if gain is None or gain.loss > gain.standard_error:
            self.best = average
            self.best_epoch = epoch
            self.n_without_gain = 0
        else:
            self.n_without_gain += 1
        return gain

    def record(self, epoch: int) -> dict[str, Any]:
        """Return the measurement after an epoch, for the metrics; empty if there was none."""
        return self._record if epoch == self._measured_epoch else {}

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Return the losses of the best measurement so far, for the state to resume from."""
        return {} if self.best is None else {_LOSSES: self.best.losses}

    def progress(self) -> dict[str, Any] | None:
        """Return the last measurement, the best, and how many came after it, as JSON values; None before the first."""
        if self.best is None:
            return None
        return {
            "measured_epoch": self._measured_epoch,
            "record": self._record,
            "best": self.best[:2],
            "best_epoch": self.best_epoch,
            "without_gain": self.n_without_gain,
        }

    def restore(self, state: RunState) -> None:
        """Restore the measurements from a state; do nothing if it has none."""
        values = state.values.get("stop")
        if values is not None:
            name, size = values["best"]
            self.best = Candidate(name, size, state.arrays[_LOSSES])
            self.best_epoch = values["best_epoch"]
            self.n_without_gain = values["without_gain"]
            self._measured_epoch = values["measured_epoch"]
            self._record = values["record"]
