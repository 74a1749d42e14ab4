"""The lines that a run prints after its epochs and at its end.

Programs look for the published ones, ``epoch: 1 step: 74 loss is 0.8713`` and ``{'Accuracy': 0.88}``; beside them stand
lines for people.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from dimred.console import say
from dimred.files.metrics_file import ACCURACY, metric_text


def published_epoch_line(epoch: int, n_steps: int, loss: float | None) -> str:
    """An epoch that has ended, and the loss of its last step; None where it was not finite."""
    return f"epoch: {epoch} step: {n_steps} loss is {'nan' if loss is None else loss}"


def loss_text(loss: float | None) -> str:
    """A loss as a record has it; None where it was not finite."""
    return "nan" if loss is None else f"{loss:.4f}"


def epoch_line(
    place: str, n_steps: int, loss: float | None, rate: float | None, measured: str | None, seconds: float
) -> str:
    """An epoch after its evaluation, such as ``epoch 12/40  step 74  loss 0.8713  lr 0.2  val 84.1 %  2.1 s``.

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


def metric_line(name: str, value: float | None) -> str:
    """A run's value: ``{'Accuracy': 0.88}``, or another metric by its own name."""
    return str({"Accuracy" if name == ACCURACY else name: value})


def say_end(name: str, split: str, value: float | None, how: str, saved: Path, command: Sequence[str]) -> None:
    """What a run ends with: the value of the network to use and what it is of, its file, and the next command.

    Args:
        name: of the metric.
        split: that it was measured on.
        value: None where it was not measured.
        how: what else a reader must know of it, from a comma on.
        saved: the network to use.
        command: its words.
    """
    if value is not None:
        say(f"{name} on {split!r}{how}: {metric_text(name, value)}")
    say(f"network: {saved}")
    say(f"next: {shlex.join(command)}")
