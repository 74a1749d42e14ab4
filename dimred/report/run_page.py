"""The page of a run: its verdict, what was compared, and its pictures with words."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from dimred.files.metrics_file import ACCURACY, metric_text
from dimred.files.run_names import CONFIG, METRICS, RESULT, VERSIONS
from dimred.report import plots
from dimred.report.comparison_page import COMPARISON_PICTURES, add_comparison
from dimred.report.html import details, key_figures, preformatted, sentences, table
from dimred.report.page import Page, Picture, make_page_folder
from dimred.report.plane import PlaneView, plot_distances, plot_plane
from dimred.report.record import StageOneRecord, StageTwoRecord, passes_of
from dimred.report.verdict import (
    Measured,
    duration,
    kept_in_words,
    run_verdict,
    start_in_words,
)

PAGE = "report.html"
_PICTURES = (
    "metric", "loss", "spectrum", "plane", "plane-near", "distance", "steps", "captured", *COMPARISON_PICTURES
)  # fmt: skip
_SHOWN = 6  # candidates of a choice; the others are below a line that opens them


def make_report_folder(out: Path) -> None:
    """Make the folder of a report; an earlier report may be in it. ConfigError: as ``make_page_folder``."""
    make_page_folder(out, PAGE, _PICTURES)


def write_report(
    out: Path, run: StageTwoRecord, measured: Measured, plane: PlaneView | None, comparison: dict[str, Any] | None
) -> Path:
    """Write ``report.html`` of a finished stage 2, and each picture as PNG and SVG; returns the page's path.

    Args:
        out: a folder, see ``make_report_folder``; files of an earlier report in it are replaced, one by one.
        run: what the run's files say.
        measured: what they don't.
        plane: None where it can't be shown.
        comparison: of ``dimred compare``, see ``dimred.report.comparison.collect``.
    """
    page, result, stage_1 = Page(out, PAGE, _PICTURES), run.result, run.stage_1
    _add_choices(page, result)
    if stage_1 is not None:
        searched = {run.stage_1_epochs + epoch: value for epoch, value in run.by_point.items()}
        again = {}
        if measured.reestimated and measured.last is not None:
            again = {run.stage_1_epochs: measured.last, max(searched): run.kept_metric}
        _add_curves(page, stage_1, run.metric, stage_1.snapshot_epochs(run.basis), searched, again)
    if run.basis is not None:
        _add_spectrum(page, run.basis.explained_variance_ratio)
    elif stage_1 is not None:
        _add_spectrum(page, stage_1.variance_shares())
    if plane is not None:
        _add_plane(page, plane)
    _add_search(page, run)
    if comparison is not None:
        add_comparison(page, "Comparison", comparison)
    sources = {name: source for name, source in result["sources"].items() if source}
    folders = {"stage 2": run.folder} if stage_1 is None else {"stage 1": stage_1.folder, "stage 2": run.folder}
    _add_configuration(page, sources, folders)
    return page.write(f"Two-stage training: {run.folder.name}", _summary(run, measured))


def write_stage_1_report(out: Path, run: StageOneRecord, metric: str = ACCURACY) -> Path:
    """Write ``report.html`` of a stage 1 alone, while it runs or after it; otherwise as ``write_report``."""
    page = Page(out, PAGE, _PICTURES)
    _add_curves(page, run, metric, run.snapshot_epochs(), {}, {})
    _add_spectrum(page, run.variance_shares())
    _add_configuration(page, {}, {"stage 1": run.folder})
    facts = [(str(run.last_epoch), "epochs done"), (str(len(run.snapshot_epochs())), "snapshots kept")]
    if found := run.measured(metric):
        epoch, value = list(found.items())[-1]
        facts.insert(0, (metric_text(metric, value), f"{metric} after epoch {epoch}, statistics as trained"))
    if measured := run.averaged:
        loss, epoch, width = (measured[-1][name] for name in ("averaged_loss", "epoch", "averaged_window"))
        facts.append((f"{loss:.4f}", f"loss on val of the mean of {width} snapshots, after epoch {epoch}"))
    said = [
        f"Stage 1 has done {run.last_epoch} epochs in {duration(run.seconds)}.",
        "It is no end yet: dimred train stage-2 averages its snapshots and finishes, from its last full checkpoint.",
    ]
    where = {"run": str(run.folder.resolve()), "last epoch": _when(run.folder / METRICS)}
    return page.write(f"Stage 1: {run.folder.name}", sentences(said, "verdict") + _named(where) + key_figures(facts))


def _summary(run: StageTwoRecord, measured: Measured) -> str:
    result, metric = run.result, run.metric
    ours = metric_text(metric, run.kept_metric)
    facts = [(ours, f"{metric} on {measured.split} of the network to use: {kept_in_words(result)}")]
    if measured.last is not None:
        facts.append((metric_text(metric, measured.last), f"stage 1's last weights, epoch {run.stage_1_epochs}"))
    # The last weights have one figure; their other one, with the statistics as trained, would need its reason told.
    if result.get("started_from", result["start"]) != "last" or measured.last is None:
        facts.append((metric_text(metric, run.by_point[0]), f"where stage 2 began: {start_in_words(result)}"))
    facts.append((f"{passes_of(result):.1f}", f"epochs' worth of passes in stage 2; stage 1: {run.stage_1_epochs}"))
    if basis := result["basis"]:
        facts.append((f"{result['accepted_steps']} of {result['steps']}", "steps accepted"))
        facts.append((f"{basis['n_components']} of {basis['n_weights']:,}", "dimensions searched"))
    words, residual = [], result.get("residual", {})
    if residual.get("kind") == "continued":
        place = "outside the subspace " if basis else ""
        inside = f", those of the search inside to {result['moved_inside']:.3g}" if basis else ""
        words.append(
            f"Stage 1's optimizer, {residual['optimizer']}, went on {place}from {residual['factor']:.3g} of its last "
            f"rate, {residual['rate']:.3g}, to 0. The lengths of its steps add up to {result['moved_outside']:.3g}"
            f"{inside}."
        )
    if "stopped" in result:
        words.append(f"The search ended early: {result['stopped']}.")
    if run.gone:
        words.append(f"Left out here is what needs the {' and the '.join(run.gone)}: not there any more.")
    took = f"stage 2 {duration(run.seconds)}"
    if run.stage_1 is not None:
        took = f"stage 1 {duration(run.stage_1.seconds)}, {took}"
    where = {"run": str(run.folder.resolve()), "data": result["sources"]["data"], "ended": _when(run.folder / RESULT)}
    opening = sentences(run_verdict(run, measured), "verdict") + _named(where | {"took": took})
    return opening + key_figures(facts) + sentences(words)


def _named(facts: Mapping[str, str]) -> str:
    return table((), facts.items(), kind="names")


def _when(path: Path) -> str:
    """When a file was written, as a date."""
    written = datetime.fromtimestamp(path.stat().st_mtime)
    return f"{written.day} {written:%B %Y, %H:%M}"


def _add_choices(page: Page, result: Mapping[str, Any]) -> None:
    """What ``val`` chose among, at the start and at the end, and what that cost."""
    parts = []
    for what, heading, chosen in (
        ("start", "Where stage 2 could have begun", result.get("started_from")),
        ("average", "Averages of the snapshots", result.get("average_of")),
        ("kept", "What stage 2 could have kept", result.get("kept")),
    ):
        if f"{what}_candidates" not in result:
            continue
        rows = [
            [
                f"**{_point(one['name'])}**" if one["name"] == chosen else _point(one["name"]),
                f"{one['width']:.3g}", f"{one['loss']:.4f}", f"{one['behind']:.4f} ± {one['standard_error']:.4f}",
            ]
            for one in sorted(result[f"{what}_candidates"], key=lambda one: one["loss"])
        ]  # fmt: skip
        shown = [row for place, row in enumerate(rows) if place < _SHOWN or row[0].startswith("**") or row[0] == "last"]
        headings = (heading, "averages", "loss on val", "behind the lowest")
        cost, seconds = result[f"{what}_cost"], result[f"{what}_seconds"]
        again = f" and {cost['reestimations']} re-estimations of BatchNorm" if cost["reestimations"] else ""
        said = f"Choosing took {cost['val_passes']} passes over val{again}, {duration(seconds)}."
        parts.append(table(headings, shown) + sentences([said]))
        if len(rows) > len(shown):
            parts.append(details(f"All {len(rows)}", table(headings, rows)))
    if parts:
        rule = (
            "The val split chooses: the widest average of those no more than one standard error behind the lowest "
            "loss. The bold one was taken."
        )
        page.add("What was compared", [], sentences([rule]) + "".join(parts))


def _point(name: str) -> str:
    points = {"start": "the start", "average": "the best average"}
    return f"epoch {name}" if name.isdecimal() else points.get(name, name)


def _add_curves(
    page: Page,
    run: StageOneRecord,
    metric: str,
    snapshot_epochs: Sequence[int],
    searched: Mapping[int, float],
    reestimated: Mapping[int, float],
) -> None:
    """The metric of stage 1, and of stage 2 by epoch where there is one, from its start on; stage 1's loss."""

    def told(value: float) -> str:
        return metric_text(metric, value)

    pictures, plain = [], run.measured(metric)
    if plain:
        says = f"{metric.capitalize()} over epochs. Plain training ends at {told(list(plain.values())[-1])}"
        if searched:
            points = list(searched.values())
            says += f"; stage 2 starts at {told(points[0])} and ends at {told(points[-1])}"
        taken = (snapshot_epochs[0], snapshot_epochs[-1]) if snapshot_epochs else None
        if taken:
            says += f"; snapshots were taken in epochs {taken[0]} to {taken[1]}"
        drawn = plots.plot_metric(metric, plain, searched, taken, reestimated)
        caption = f"{metric.capitalize()} over epochs; lines with the statistics of the moment. "
        caption += "The axis leaves out single collapses."
        if reestimated:
            caption += " Crosses: stage 1's last weights and the network to use, BatchNorm re-estimated."
        pictures.append(Picture("metric", drawn, f"{says}.", caption))
    losses = [math.nan if record["loss"] is None else record["loss"] for record in run.epochs]
    drawn = plots.plot_loss([record["epoch"] for record in run.epochs], losses)
    says = f"Training loss of stage 1, from {losses[0]:.3g} to {losses[-1]:.3g}."
    page.add("Curves", [*pictures, Picture("loss", drawn, says, "Stage 1's training loss.")], after=_averaged(run))


def _averaged(run: StageOneRecord) -> str:
    """The measurements of ``stop: averaged``; nothing where there are none."""
    rows = []
    for one in run.averaged:
        loss, gain = f"{one['averaged_loss']:.4f} ± {one['averaged_standard_error']:.4f}", one["averaged_gain"]
        gained = "" if gain is None else f"{gain:.4f} ± {one['averaged_gain_standard_error']:.4f}"
        rows.append([str(one["epoch"]), str(one["averaged_window"]), loss, gained])
    heading = ("after epoch", "snapshots averaged", "loss on val", "below the best before")
    return details("The averaged weights, which end stage 1 if they gain no more", table(heading, rows)) if rows else ""


def _add_spectrum(page: Page, shares: np.ndarray | None) -> None:
    """The share (k,) of the snapshots' variance along each direction; nothing where it is not known."""
    if shares is None:
        return
    needed, k = int(np.searchsorted(np.cumsum(shares), 0.9 * shares.sum())) + 1, len(shares)
    page.add("Subspace", [Picture(
        "spectrum", plots.plot_spectrum(shares),
        f"Share of the snapshots' variance along each of {k} directions: the first has {100 * shares[0]:.2f} %, all "
        f"together {100 * shares.sum():.2f} %.",
        f"How much of the snapshots' variance each direction holds. The first {needed} hold nine tenths of what all "
        f"{k} hold.",
    )])  # fmt: skip


def _add_plane(page: Page, plane: PlaneView) -> None:
    whole, near = plane.whole.loss, plane.near.loss
    off = [f"{points.off.min():.3g} to {points.off.max():.3g}" for points in (plane.snapshots, plane.stops)]
    page.add("Where it went", [
        Picture(
            "plane", plot_plane(plane.whole, plane),
            f"Loss surface with the path of both stages. The lowest loss on the grid is {np.nanmin(whole):.3g}.",
            "The true loss of the plane through the snapshots' mean and the first two directions: the network at each "
            f"of {whole.size} points, on the same {plane.n_images:,} training samples"
            f"{', with BatchNorm statistics of these' if plane.batch_norm else ''}. The points are projections: their "
            "own loss is not that of the plane below them.",
        ),
        Picture(
            "plane-near", plot_plane(plane.near, plane),
            f"The part of the plane around stage 2. Its loss goes from {np.nanmin(near):.4g} to {np.nanmax(near):.4g}.",
            "The same plane, the part around stage 2; here too losses are differences to the lowest one shown.",
        ),
        Picture(
            "distance", plot_distances(plane),
            f"Distance off the plane: stage 1's snapshots {off[0]}, stage 2's points {off[1]}.",
            "How far each point lies off the plane that is shown: the length of what is left of its weights, less the "
            "snapshots' mean, without their parts along the first two directions. Dotted: the length of these parts.",
        ),
    ])  # fmt: skip


def _add_search(page: Page, run: StageTwoRecord) -> None:
    result = run.result
    if not result["basis"]:
        drawn = plots.plot_loss([step["step"] for step in run.steps], [step["loss"] for step in run.steps], "step")
        page.add("Stage 2, step by step", [Picture(
            "steps", drawn, f"Loss of each of {result['steps']} batches.", "The loss of each batch, before its step."
        )])  # fmt: skip
        return
    shares = [share for step in run.steps if (share := step["captured_share"]) is not None]
    mean = f"{100 * float(np.mean(shares)):.2g} %" if shares else "unknown"
    page.add("The search, step by step", [
        Picture(
            "steps", plots.plot_steps(run.steps),
            f"Loss of each step's batch; {result['accepted_steps']} of {result['steps']} steps were accepted, with "
            f"{result['trials']} trials.",
            "Each step's batch before and after the step, and the trials it took.",
        ),
        Picture(
            "captured", plots.plot_captured(run.steps),
            f"Share of the gradient inside the subspace, {mean} in the mean.",
            "Share of the gradient's squared length that lies inside the subspace.",
        ),
    ])  # fmt: skip


def _add_configuration(page: Page, sources: Mapping[str, str], stages: Mapping[str, Path]) -> None:
    """What the run was made from, the versions that the last stage ran with, and each stage's configuration."""
    versions = json.loads((list(stages.values())[-1] / VERSIONS).read_text(encoding="utf-8"))
    texts = [
        details(f"Configuration of {stage} ({path})", preformatted(path.read_text(encoding="utf-8")))
        for stage, folder in stages.items()
        if (path := folder / CONFIG).is_file()
    ]
    facts = table((), [*sources.items(), *versions.items()], kind="names")
    page.add("Configuration and versions", [], facts, "".join(texts))
