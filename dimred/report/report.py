"""The report of a run: its pictures, and the page that holds them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dimred.files.atomic import atomic_write
from dimred.report import html
from dimred.report.comparison import HEADINGS, TITLES, table_rows
from dimred.report.plane import PlanePoints, Surface
from dimred.report.plane_plots import plot_distances, plot_plane
from dimred.report.plots import (
    NARROW,
    plot_accuracy,
    plot_captured,
    plot_comparison,
    plot_loss,
    plot_spectrum,
    plot_steps,
    save_figure,
    svg_text,
)
from dimred.report.run_record import RunRecord, StageOneRecord


@dataclass(frozen=True)
class PlaneView:
    """What the plane's pictures show.

    Attributes:
        surface: the loss in the plane, around both stages.
        near: the same, around stage 2 alone.
        snapshots: stage 1's, with the epochs they were taken in.
        stops: stage 2's start and the ends of its epochs, with their epochs.
        search: where each step led, in the plane, (n + 1, 2).
    """

    surface: Surface
    near: Surface
    snapshots: PlanePoints
    snapshot_epochs: list[int]
    stops: PlanePoints
    stop_epochs: list[int]
    search: np.ndarray


def write_report(
    out: Path, run: RunRecord, shares: np.ndarray | None, plane: PlaneView | None, comparison: dict[str, Any] | None
) -> Path:
    """Write ``report.html`` and each picture as PNG and SVG.

    Args:
        out: an empty folder.
        run: what the run's files say.
        shares: of the snapshots' variance along each direction, (k,); None for a basis that does not say.
        plane: None for a basis without a mean.
        comparison: of ``dimred compare``, see ``dimred.report.comparison.collect``.

    Returns:
        The page's path.
    """
    pictures = _Pictures(out)
    result, last = run.result, run.stage_1.last_epoch
    searched = {last: result["accuracy_start"]}
    searched |= {last + int(epoch): accuracy for epoch, accuracy in result["accuracy_by_epoch"].items()}
    sections = [("Curves", _curves(pictures, run.stage_1, run.snapshot_epochs(), searched))]
    if shares is not None:
        sections.append(("Subspace", _subspace(pictures, shares)))
    if plane is not None:
        sections.append(("Where it went", _plane(pictures, plane)))
    sections.append(("The search, step by step", _search(pictures, run)))
    if comparison is not None:
        sections.append(("Comparison", _comparison(pictures, comparison)))
    made_from = {name: str(path) for name, path in result["sources"].items()}
    sections.append(("Configuration and versions", _configuration(run, made_from)))
    page = html.page(f"Two-stage training: {run.folder.name}", [_summary(run)], sections)
    atomic_write(out / "report.html", page)
    return out / "report.html"


def write_stage_1_report(
    out: Path, run: StageOneRecord, snapshot_epochs: Sequence[int], shares: np.ndarray | None
) -> Path:
    """Write ``report.html`` of a stage 1 alone, while it runs or after it, and each picture as PNG and SVG.

    Args:
        out: an empty folder.
        run: what the run's files say.
        snapshot_epochs: the epoch of each snapshot that is kept, in order.
        shares: of their variance along each direction; None where there are too few.

    Returns:
        The page's path.
    """
    pictures = _Pictures(out)
    sections = [("Curves", _curves(pictures, run, snapshot_epochs, {}))]
    if shares is not None:
        sections.append(("Subspace", _subspace(pictures, shares)))
    sections.append(("Configuration and versions", _configuration(run, {})))
    facts = [(str(run.last_epoch), "epochs done"), (str(len(snapshot_epochs)), "snapshots kept")]
    if run.accuracies:
        epoch, accuracy = list(run.accuracies.items())[-1]
        facts.insert(0, (_percent(accuracy), f"accuracy after epoch {epoch}"))
    page = html.page(f"Stage 1: {run.folder.name}", [html.bullet_facts(facts)], sections)
    atomic_write(out / "report.html", page)
    return out / "report.html"


class _Pictures:
    """Saves each picture, and gives its place on the page."""

    def __init__(self, folder: Path):
        self._folder = folder

    def add(self, name: str, drawn: Figure, says: str, caption: str) -> str:
        save_figure(drawn, self._folder, name)
        return html.figure(name, svg_text(drawn), says, f"{caption} ({name}.png, {name}.svg)")


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _summary(run: RunRecord) -> str:
    result, last = run.result, run.stage_1.epochs[-1]
    facts = [(_percent(last["accuracy"]), f"plain training, epoch {last['epoch']}")]
    facts.append((_percent(result["accuracy"]), f"after stage 2 of {result['epochs']} epochs"))
    if "accuracy_reestimated" in result:
        facts.append((_percent(result["accuracy_reestimated"]), "the same, BatchNorm statistics re-estimated"))
    facts.append((f"{result['accepted_steps']} of {result['steps']}", "steps accepted"))
    basis = result["basis"]
    facts.append((f"{basis['n_components']} of {basis['n_weights']:,}", "dimensions searched"))
    return html.bullet_facts(facts) + "".join(html.paragraph(text) for text in _sentences(run))


def _sentences(run: RunRecord) -> Sequence[str]:
    result = run.result
    said = []
    if "kept" in result:
        kept = "its start" if result["kept"] == "start" else f"epoch {result['kept']}"
        began = result.get("started_from", result["start"])
        said.append(f"Stage 2 began at {began!r} and kept {kept}, the lowest loss on the val split.")
        if result["kept"] == "start":
            said[0] += " So no step of the search is in the network that was kept."
    if "stopped" in result:
        said.append(f"The search ended early: {result['stopped']}.")
    return [*said, "Accuracies are those on the evaluation split, as in result.json."]


def _curves(
    pictures: _Pictures, run: StageOneRecord, snapshot_epochs: Sequence[int], searched: Mapping[int, float]
) -> str:
    """Accuracy of stage 1, and of stage 2 by epoch where there is one, from its start on; stage 1's loss."""
    figures, plain = "", run.accuracies
    if plain:
        says = f"Accuracy over epochs. Plain training ends at {_percent(list(plain.values())[-1])}"
        if searched:
            points = list(searched.values())
            says += f"; stage 2 starts at {_percent(points[0])} and ends at {_percent(points[-1])}"
        taken = (snapshot_epochs[0], snapshot_epochs[-1]) if snapshot_epochs else None
        if taken:
            says += f"; snapshots were taken in epochs {taken[0]} to {taken[1]}"
        figures += pictures.add(
            "accuracy", plot_accuracy(plain, searched, taken, size=NARROW), f"{says}.",
            "Accuracy over epochs. The axis begins at the 10th percentile of late training.",
        )  # fmt: skip
    losses = [math.nan if record["loss"] is None else record["loss"] for record in run.epochs]
    figures += pictures.add(
        "loss", plot_loss([record["epoch"] for record in run.epochs], losses),
        f"Training loss of stage 1, from {losses[0]:.3g} to {losses[-1]:.3g}.", "Stage 1's training loss.",
    )  # fmt: skip
    return f'<div class="figures">{figures}</div>'


def _subspace(pictures: _Pictures, shares: np.ndarray) -> str:
    needed = int(np.searchsorted(np.cumsum(shares), 0.9 * shares.sum())) + 1
    drawn = pictures.add(
        "spectrum", plot_spectrum(shares),
        f"Share of the snapshots' variance along each of {len(shares)} directions: the first has "
        f"{_percent(shares[0])}, all together {_percent(shares.sum())}.",
        f"How much of the snapshots' variance each direction holds. The first {needed} hold nine tenths of what all "
        f"{len(shares)} hold.",
    )  # fmt: skip
    return f'<div class="figures">{drawn}</div>'


def _plane(pictures: _Pictures, plane: PlaneView) -> str:
    surface = plane.surface
    lowest = float(np.nanmin(surface.loss))
    view = pictures.add(
        "plane", plot_plane(surface, plane.snapshots, plane.search, plane.stops),
        f"Loss surface with the path of both stages. The lowest loss on the grid is {lowest:.3g}.",
        f"The true loss of the plane through the snapshots' mean and the first two directions: the network at each of "
        f"{surface.loss.size} points, on the same {surface.n_images:,} training images, with BatchNorm statistics of "
        "these images. The points are projections: their own loss is not that of the plane below them.",
    )  # fmt: skip
    near = pictures.add(
        "plane-near", plot_plane(plane.near, plane.snapshots, plane.search, plane.stops),
        f"The part of the plane around stage 2. Its loss goes from {float(np.nanmin(plane.near.loss)):.4g} to "
        f"{float(np.nanmax(plane.near.loss)):.4g}.",
        "The same plane, the part around stage 2.",
    )  # fmt: skip
    ranges = [f"{points.off.min():.3g} to {points.off.max():.3g}" for points in (plane.snapshots, plane.stops)]
    distances = pictures.add(
        "distance", plot_distances(plane.snapshots, plane.snapshot_epochs, plane.stops, plane.stop_epochs),
        f"Distance off the plane: stage 1's snapshots {ranges[0]}, stage 2's points {ranges[1]}.",
        "How far each point lies off the plane that is shown.",
    )  # fmt: skip
    return f'<div class="figures">{view}{near}{distances}</div>'


def _search(pictures: _Pictures, run: RunRecord) -> str:
    result = run.result
    steps = pictures.add(
        "steps", plot_steps(run.steps),
        f"Loss of each step's batch; {result['accepted_steps']} of {result['steps']} steps were accepted, with "
        f"{result['trials']} trials.",
        "Each step's batch before and after the step, and the trials it took.",
    )  # fmt: skip
    shares = [step["captured_share"] for step in run.steps if step["captured_share"] is not None]
    mean = f"{100 * float(np.mean(shares)):.2g} %" if shares else "unknown"
    captured = pictures.add(
        "captured", plot_captured(run.steps), f"Share of the gradient inside the subspace, {mean} in the mean.",
        "Share of the gradient's squared length that lies inside the subspace.",
    )  # fmt: skip
    return f'<div class="figures">{steps}{captured}</div>'


def _comparison(pictures: _Pictures, summary: dict[str, Any]) -> str:
    rows = summary["rows"]
    points = [
        (TITLES[row["method"]].replace("**", ""), row["test_reestimated"]["mean"], row["test_reestimated"]["spread"])
        for row in rows
    ]
    best = max(points, key=lambda point: point[1])
    by_val: Callable[[dict[str, Any]], float] = lambda row: float(row["val_reestimated"]["mean"])  # noqa: E731
    chosen = TITLES[max(rows, key=by_val)["method"]].replace("**", "")
    drawn = pictures.add(
        "comparison", plot_comparison(points), f"Test accuracy of {len(points)} methods; the best is {best[0]} with "
        f"{_percent(best[1])}.", "Test accuracy, BatchNorm re-estimated; bars are the spread over the seeds.",
    )  # fmt: skip
    seeds = ", ".join(map(str, summary["seeds"]))
    return (
        html.paragraph(
            f"From the same stage 1, seeds {seeds}. The val split chose, the test split reports; by val alone one "
            f"would have taken: {chosen}. Costs are those after stage 1, passes in epochs of the training split."
        )
        + html.table(HEADINGS, table_rows(summary))
        + f'<div class="figures">{drawn}</div>'
    )


def _configuration(run: RunRecord | StageOneRecord, made_from: Mapping[str, str]) -> str:
    return html.table((), [*made_from.items(), *run.versions.items()], kind="names") + "".join(
        html.details(f"Configuration of {name}", text) for name, text in run.configurations.items()
    )
