"""Pictures of a run. Every function returns a figure; ``save_figure`` writes it as PNG and SVG."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from dimred.report.colours import AVERAGE, LIGHT, PLAIN, REJECTED, STAGE_2

Size = tuple[float, float]
NARROW: Size = (4.8, 3.6)  # inches: letters stay readable where a telephone scales it to its width
WIDE: Size = (8, 4.5)


def new_figure(size: Size = NARROW, rows: int = 1, ratios: Sequence[float] = (1,)) -> tuple[Figure, Any]:
    """A figure, and its axes without a frame above and at the right."""
    with mpl.rc_context({"font.size": 11}):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        axes = figure.subplots(rows, 1, squeeze=False, sharex=rows > 1, gridspec_kw={"height_ratios": list(ratios)})[
            :, 0
        ]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes if rows > 1 else axes[0]


def legend_below(figure: Figure, axes: Any, columns: int = 2) -> None:
    """A legend under the picture, where it hides nothing."""
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )  # fmt: skip


def save_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write ``name.png`` and ``name.svg``."""
    figure.savefig(folder / f"{name}.png")
    (folder / f"{name}.svg").write_text(svg_text(figure), encoding="utf-8")


def svg_text(figure: Figure) -> str:
    """The figure as SVG, the same text for the same figure."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "dimred", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def plot_accuracy(
    plain: Mapping[int, float],
    stage_2: Mapping[int, float],
    snapshots_taken: tuple[int, int] | None,
    average: float | None = None,
    size: Size = WIDE,
) -> Figure:
    """Accuracy over epochs: plain training, stage 2 from its branching point, the average of the snapshots.

    Args:
        plain: epoch -> accuracy as a fraction.
        stage_2: epoch -> accuracy, the branching point included; empty where there is none.
        snapshots_taken: the first and the last epoch that gave a snapshot; None where that is not known.
        average: accuracy of the average of the snapshots, where it is known.
        size: inches.
    """
    figure, axes = new_figure(size)
    if snapshots_taken:
        axes.axvspan(*snapshots_taken, color=LIGHT, alpha=0.12, lw=0, label="snapshots taken")
    axes.plot(list(plain), _percent(plain.values()), color=PLAIN, lw=1, label="plain training")
    averages = [] if average is None else [average]
    for value in averages:
        axes.axhline(100 * value, ls="--", color=AVERAGE, lw=1.5, label="average of the snapshots")
    if stage_2:
        axes.plot(list(stage_2), _percent(stage_2.values()), "o-", color=STAGE_2, lw=2, ms=4, label="stage 2")
    # Single collapses would flatten the part that matters, so the axis starts at the 10th percentile.
    first = snapshots_taken[0] if snapshots_taken else 0
    late = [accuracy for epoch, accuracy in plain.items() if epoch >= first] or list(plain.values())
    lowest = min([float(np.percentile(late, 10)), *averages, *stage_2.values()])
    highest = max([*plain.values(), *stage_2.values(), *averages])
    margin = 0.1 * (highest - lowest) + 0.002
    axes.set_ylim(100 * (lowest - margin), 100 * (highest + margin))
    axes.set_xlim(0, max([*plain, *stage_2]) + 1)
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy, %")
    legend_below(figure, axes)
    return figure


def plot_loss(epochs: Sequence[int], losses: Sequence[float]) -> Figure:
    """Stage 1's training loss, that of the last step of each epoch."""
    figure, axes = new_figure()
    axes.plot(epochs, losses, color=PLAIN, lw=1)
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss, last step")
    return figure


def plot_spectrum(shares: np.ndarray) -> Figure:
    """Share of the snapshots' variance along each direction, and their sum.

    Args:
        shares: (k,), fractions of 1.
    """
    figure, axes = new_figure()
    numbers = np.arange(1, len(shares) + 1)
    axes.bar(numbers, 100 * shares, color=AVERAGE, label="each direction")
    axes.plot(numbers, 100 * np.cumsum(shares), "o-", color=STAGE_2, ms=3, lw=1.5, label="all up to it")
    axes.set_xlabel("principal direction")
    axes.set_ylabel("share of the variance, %")
    axes.set_ylim(0, 102)
    legend_below(figure, axes)
    return figure


def plot_steps(steps: Sequence[Mapping[str, Any]]) -> Figure:
    """Stage 2's loss step by step: accepted and rejected steps, and how many trials each took."""
    figure, (upper, lower) = new_figure((4.8, 4.6), rows=2, ratios=(2.2, 1))
    kinds = {
        "accepted": ("o", STAGE_2, "accepted"),
        "no_decrease": ("x", PLAIN, "rejected: no trial accepted"),
        "non_finite_gradient": ("^", REJECTED, "skipped: not finite"),
    }
    numbers = np.array([step["step"] for step in steps])
    before = _numbers(steps, "loss")
    upper.plot(numbers, before, color=LIGHT, lw=1, label="before the step, same batch")
    for kind, (marker, colour, label) in kinds.items():
        of_kind = np.array([step["outcome"] == kind for step in steps])
        if of_kind.any():
            after = _numbers(steps, "loss_after")[of_kind]
            upper.plot(numbers[of_kind], after, marker, color=colour, ms=4, label=label)
    upper.set_ylabel("loss of the batch")
    lower.bar(numbers, _numbers(steps, "n_trials"), color=AVERAGE)
    lower.set_ylabel("trials")
    lower.set_xlabel("step of stage 2")
    legend_below(figure, upper)
    return figure


def plot_captured(steps: Sequence[Mapping[str, Any]]) -> Figure:
    """Share of the gradient inside the subspace, |P g|^2 / |g|^2, step by step."""
    figure, axes = new_figure()
    shares = 100 * _numbers(steps, "captured_share")
    axes.plot([step["step"] for step in steps], shares, "o-", color=STAGE_2, ms=3, lw=1)
    if np.isfinite(shares).any():
        axes.axhline(float(np.nanmean(shares)), color=PLAIN, ls="--", lw=1, label="mean")
        legend_below(figure, axes)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step of stage 2")
    axes.set_ylabel("gradient inside, %")
    return figure


def plot_comparison(rows: Sequence[tuple[str, float, float | None]]) -> Figure:
    """Accuracy of each method, with its spread over the seeds.

    Args:
        rows: (name, mean as a fraction, spread or None), drawn from above.
    """
    figure, axes = new_figure((4.8, 1.2 + 0.3 * len(rows)))
    for place, (_, mean, spread) in enumerate(reversed(rows)):
        colour = STAGE_2 if "P-BFGS" in rows[len(rows) - 1 - place][0] else PLAIN
        axes.errorbar(
            100 * mean, place, xerr=None if spread is None else 100 * spread, fmt="o", color=colour, capsize=3
        )
    axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)], fontsize=8)
    axes.set_xlabel("test accuracy, %")
    axes.grid(axis="x", color="#e5e5e5")
    axes.set_axisbelow(True)
    return figure


def _numbers(steps: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    return np.array([np.nan if step[key] is None else step[key] for step in steps], np.float64)


def _percent(accuracies: Any) -> list[float]:
    return [100 * accuracy for accuracy in accuracies]
