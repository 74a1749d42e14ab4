"""Pictures of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

# Okabe & Ito's colours, told apart with every common kind of colour blindness.
_PLAIN, _STAGE_2, _AVERAGE = "#000000", "#D55E00", "#0072B2"


def plot_accuracy(
    path: Path,
    plain: Mapping[int, float],
    stage_2: Mapping[int, float],
    average: float,
    branch_epoch: int,
    snapshots_from: int,
) -> None:
    """Accuracy over epochs: plain training, stage 2 from its branching point, the average of the snapshots.

    Args:
        path: of the picture; its ending chooses the format.
        plain: epoch -> accuracy as a fraction.
        stage_2: epoch -> accuracy, the branching point included.
        average: accuracy of the average of the snapshots.
        branch_epoch: where stage 2 leaves plain training.
        snapshots_from: first epoch that gave a snapshot.
    """
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes: Any = figure.subplots()
    axes.axvspan(snapshots_from, branch_epoch, color="#56B4E9", alpha=0.12, lw=0, label="snapshots taken")
    axes.plot(list(plain), _percent(plain.values()), color=_PLAIN, lw=1, label="plain training")
    axes.axhline(100 * average, ls="--", color=_AVERAGE, lw=1.5, label="average of the snapshots")
    axes.plot(list(stage_2), _percent(stage_2.values()), "o-", color=_STAGE_2, lw=2, ms=4, label="stage 2")
    # Single collapses would flatten the part that matters, so the axis starts at the 10th percentile.
    late = np.array([accuracy for epoch, accuracy in plain.items() if epoch >= snapshots_from])
    lowest = min(float(np.percentile(late, 10)), average, *stage_2.values())
    highest = max(*plain.values(), *stage_2.values(), average)
    margin = 0.1 * (highest - lowest) + 0.002
    axes.set_ylim(100 * (lowest - margin), 100 * (highest + margin))
    axes.set_xlim(0, max(plain) + 1)
    axes.set_xlabel("epoch")
    axes.set_ylabel("test accuracy, %")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _percent(accuracies: Any) -> list[float]:
    return [100 * accuracy for accuracy in accuracies]
