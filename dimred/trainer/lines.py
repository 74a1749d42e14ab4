"""The lines that a run prints after its epochs and at its end.

Programs look for the published ones, ``epoch: 1 step: 74 loss is 0.8713`` and ``{'Accuracy': 0.88}``; beside them stand
lines for people.
"""

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from dimred.io.metrics_file import ACCURACY, metric_text

_log = logging.getLogger(__name__)


def published_epoch_line(epoch: int, n_steps: int, loss: float | None) -> str:
    """Format an epoch that has ended, with the loss of its last step; None where that was not finite."""
    return f"epoch: {epoch} step: {n_steps} loss is {'nan' if loss is None else loss}"


def loss_text(loss: float | None) -> str:
    """Format a loss of a record; None where it was not finite."""
    return "nan" if loss is None else f"{loss:.4f}"


def epoch_line(
    place: str, n_steps: int, loss: float | None, rate: float | None, measured: str | None, seconds: float
) -> str:
    """Format an epoch after its evaluation: ``epoch 12/40  step 74  loss 0.8713  lr 0.2  val 84.1 %  2.1 s``.

    Args:
        place: number of the epoch / number of epochs.
        n_steps: of the epoch.
        loss: of its last step; None where it was not finite.
        rate: of its last step; None where there is none.
        measured: the split and its value; None where nothing was measured.
        seconds: of its steps.
    """
    parts = [f"epoch {place}", f"step {n_steps}", f"loss {loss_text(loss)}", rate and f"lr {rate:.3g}", measured]
    return "  ".join([*(part for part in parts if part), f"{seconds:.1f} s"])


def measured_text(name: str, value: float, reestimated: float | None, decimals: int) -> str:
    """Write a metric, and beside it the one with re-estimated BatchNorm statistics if that was measured."""
    again = "" if reestimated is None else f" ({metric_text(name, reestimated, decimals)} re-estimated)"
    return metric_text(name, value, decimals) + again


def metric_line(name: str, value: float | None) -> str:
    """Format a run's value: ``{'Accuracy': 0.88}``, or another metric by its own name."""
    return str({"Accuracy" if name == ACCURACY else name: value})


def say_end(measured: str | None, warning: str | None, saved: Path, command: Sequence[str]) -> None:
    """Say how good the network is, where its file is, and which command comes next.

    Args:
        measured: the metric, its split and its value; None if it was not measured.
        warning: what a reader must know of the split, or None.
        saved: the network to use.
        command: the words of the next command.
    """
    for line in (measured, warning):
        if line is not None:
            _log.info(line)
    _log.info(f"network: {saved}")
    _log.info(f"next: {shlex.join(command)}")
