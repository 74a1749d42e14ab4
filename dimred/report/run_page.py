"""Write a run's page: verdict, candidates, pictures with captions, and configuration."""

import json
import math
from collections.abc import Mapping
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dimred.averaging.choice import in_words
from dimred.config import StageOneConfig
from dimred.errors import ConfigError
from dimred.io.atomic import atomic_write, is_temporary, make_folder, remove_leftovers, writable
from dimred.io.regular_file import read_regular
from dimred.report import plots
from dimred.report.class_section import ClassView, add_classes
from dimred.report.page import Page, Picture, details, key_figures, sentences, table
from dimred.report.plots import PlaneView, distances, plot_plane
from dimred.report.run_record import StageOneRecord, StageTwoRecord, on_equal_terms
from dimred.report.trend import column
from dimred.report.words import duration, kept_in_words, run_verdict, start_in_words
from dimred.run_files.metric import Metric, metrics_of
from dimred.run_files.metrics_file import loss_text
from dimred.run_files.run_names import CONFIG, METRICS, RESULT, VERSIONS
from dimred.run_files.stage_two_result import AVERAGE, FINAL, START, StageTwoResult

PAGE = "report.html"


def make_report_folder(out: Path, command: str) -> None:
    """Make a report's folder, or take an earlier report's folder, in which new files replace the old ones.

    Args:
        out: the folder.
        command: the command that makes the report; an unfinished report's page names it.

    Raises:
        ConfigError: the folder holds files but no report, or can't be made.
    """
    with writable("--out", out):
        make_folder(out)
        remove_leftovers(out)
        if not (out / PAGE).exists():
            if other := next((path for path in out.iterdir() if not is_temporary(path.name)), None):
                raise ConfigError(f"--out is {str(out)!r}, which holds {other.name} and no report; name another folder")
            # The page marks the folder as a report, even if this process is killed before the report is complete.
            atomic_write(out / PAGE, f"This report is being made, or was not finished. To make it: {escape(command)}\n")


def write_report(
    out: Path, run: StageTwoRecord, plane: PlaneView | None = None, classes: ClassView | None = None
) -> Path:
    """Write ``report.html`` for a finished stage 2, and each picture as PNG and SVG.

    Args:
        out: folder made by ``make_report_folder``; an earlier report's files are replaced one by one.
        run: what the run's files hold.
        plane: data for the picture of the loss surface; None to leave it out.
        classes: how the network to use does on each class; None to leave it out.

    Returns:
        The page's path.

    Raises:
        CheckpointError: a snapshot can't be read.
        OSError: a file can't be written.
    """
    page = Page(out, PAGE)
    result = run.result
    stage_1 = run.stage_1
    _add_curves(page, stage_1, run.metric, run)
    if run.basis is not None:
        _add_spectrum(page, run.basis.explained_variance_ratio)
    run.method.add_sections(page)
    if plane is not None:
        _add_plane(page, plane)
    if classes is not None:
        add_classes(page, classes)
    _add_choices(page, result)
    sources = {name: source for name, source in result.sources.items() if source}
    folders = {"stage 2": run.folder} if stage_1 is None else {"stage 1": stage_1.folder, "stage 2": run.folder}
    _add_configuration(page, sources, folders)
    return page.write(f"Two-stage training: {run.folder.name}", _summary(run))


def write_stage_1_report(out: Path, run: StageOneRecord, config: StageOneConfig) -> Path:
    """Write ``report.html`` for a stage 1, finished or not, and each picture as PNG and SVG.

    Args:
        out, run: as for ``write_report``.
        config: the run's configuration.

    Returns:
        The page's path.

    Raises:
        CheckpointError, OSError: as for ``write_report``.
    """
    page = Page(out, PAGE)
    metrics = metrics_of(config.metric, config.model.n_classes)
    _add_curves(page, run, metrics[0], None)
    _add_spectrum(page, run.variance_fractions())
    _add_configuration(page, {}, {"stage 1": run.folder})
    facts = [(str(run.last_epoch), "epochs done"), (str(len(run.snapshot_epochs())), "snapshots kept")]
    for index, metric in enumerate(metrics):
        values, _, statistics = on_equal_terms(run, None, metric)
        if values:
            epoch, value = list(values.items())[-1]
            words = [f"{metric.name} on {config.data.eval_split} after epoch {epoch}", statistics]
            facts.insert(index, (metric.text(value), ", ".join(filter(None, words))))
    if records := run.average_records:
        loss, epoch, width = (records[-1][name] for name in ("averaged_loss", "epoch", "averaged_window"))
        facts.append((f"{loss:.4f}", f"loss on val of the mean of {width} snapshots, after epoch {epoch}"))
    verdict = [
        f"Stage 1 has done {run.last_epoch} epochs in {duration(run.seconds_until(run.last_epoch))}.",
        "Except after schedule-free training, dimred train stage-2 continues from its last full checkpoint.",
        *filter(None, [config.eval_split_warning()]),
    ]
    where = {"run": str(run.folder.resolve()), "last epoch": _when(run.folder / METRICS)}
    head = sentences(verdict, "verdict") + table((), where.items(), kind="names")
    return page.write(f"Stage 1: {run.folder.name}", head + key_figures(facts))


def _summary(run: StageTwoRecord) -> str:
    result = run.result
    metric = run.metric
    split = run.config.data.eval_split
    facts = [
        (
            measured.metric.text(measured.at(FINAL)),
            f"{measured.metric.name} on {split} of the network to use: {kept_in_words(result)}",
        )
        for measured in result.metrics
    ]
    facts.append((metric.text(result.main.at(START)), start_in_words(run)))
    facts.append((f"{result.passes:.1f}", f"epochs' worth of passes in stage 2; stage 1: {run.stage_1_epochs}"))
    facts += run.method.facts()
    words = [result.warning] if result.warning else []
    words += run.method.sentences()
    if result.stopped:
        words.append(f"The {run.config.method_name} ended early: {result.stopped}.")
    if run.missing_sources:
        sources = " and the ".join(run.missing_sources)
        words.append(f"Parts that need the {sources} are left out, because these are gone or were replaced.")
    durations = f"stage 2 {duration(result.seconds)}"
    if run.stage_1 is not None:
        durations = f"stage 1 {duration(run.stage_1.seconds_until(run.stage_1_epochs))}, {durations}"
    where = {"run": str(run.folder.resolve()), "data": str(result.sources["data"]), "ended": _when(run.folder / RESULT)}
    where["took"] = durations
    head = sentences(run_verdict(run, split), "verdict") + table((), where.items(), kind="names")
    return head + key_figures(facts) + sentences(words)


def _when(path: Path) -> str:
    """Format the date and time at which a file last changed."""
    time = datetime.fromtimestamp(path.stat().st_mtime)
    return f"{time.day} {time:%B %Y, %H:%M}"


def _add_choices(page: Page, result: StageTwoResult) -> None:
    """Add the candidates in each choice by ``val``, with the cost of choosing."""
    parts = []
    metric = result.main.metric
    for name, heading in (("kept", "What stage 2 could have kept"), (AVERAGE, "Averages of the snapshots")):
        choice = result.choices.get(name)
        if choice is None:
            continue
        rows = []
        for candidate in sorted(choice.candidates, key=_loss_to_sort_by):
            words = in_words(candidate["name"])
            row = [
                f"**{words}**" if candidate["name"] == choice.name else words,
                f"{candidate['effective_size']:.3g}",
                loss_text(candidate["loss"]),
                metric.text(candidate["metric"]),
                f"{loss_text(candidate['behind'])} ± {loss_text(candidate['standard_error'])}",
            ]
            rows.append(row)
        headings = (heading, "effective number", "loss on val", f"{metric.name} on val", "behind the lowest")
        worth = f"{choice.forward_passes:.1f} forward passes over the training split"
        cost = f"{choice.n_measured} networks were measured: {worth}, {duration(choice.seconds)}."
        parts.append(table(headings, rows) + sentences([cost]))
    if parts:
        rules = [
            "The val split chooses the network with the lowest value of the loss that was trained; its row is bold.",
            "The last column says by how much a loss exceeds the lowest. The number after ± is the standard error of "
            "that difference over the samples of val: two networks that differ by less than twice that are equally "
            "good.",
            "The effective number says how many networks with equal weights would average out as much noise.",
        ]
        page.add("What was compared", [], sentences(rules) + "".join(parts))


def _add_curves(page: Page, run: StageOneRecord | None, metric: Metric, stage_2: StageTwoRecord | None) -> None:
    """Add both stages' metric and training-loss curves; a stage that is not there is left out."""
    pictures = [] if run is None else _metric_picture(run, metric, stage_2)
    losses_1 = (column(run.epochs, "epoch"), column(run.epochs, "loss")) if run else (np.empty(0), np.empty(0))
    losses_2 = stage_2.losses() if stage_2 else (np.empty(0), np.empty(0))
    courses = [
        f"{stage} from {losses[0]:.3g} to {losses[-1]:.3g}"
        for stage, (_, losses) in (("stage 1", losses_1), ("stage 2", losses_2))
        if len(losses)
    ]
    caption = "Training loss of single batches."
    if stage_2 is not None:
        caption += stage_2.method.losses_caption()
    description = f"Training loss over epochs: {'; '.join(courses)}."
    pictures.append(Picture("loss", plots.plot_losses(losses_1, losses_2), description, caption))
    page.add("Curves", pictures, after="" if run is None else _averages_table(run))


def _metric_picture(run: StageOneRecord, metric: Metric, stage_2: StageTwoRecord | None) -> list[Picture]:
    """Draw both stages' metric curves; return no picture if stage 1 has not measured the metric."""
    plain, later, statistics = on_equal_terms(run, stage_2, metric)
    if not plain:
        return []
    snapshot_epochs = run.snapshot_epochs(None if stage_2 is None else stage_2.basis)
    title = f"{metric.name.capitalize()} over epochs"
    if statistics:
        title += f", {statistics}"
    description = f"{title}. Stage 1 ends at {metric.text(list(plain.values())[-1])}"
    if later:
        values = list(later.values())
        description += f"; stage 2 starts at {metric.text(values[0])}"
        if values[1:]:
            description += f" and ends at {metric.text(values[-1])}"
    ends = (snapshot_epochs[0], snapshot_epochs[-1]) if snapshot_epochs else None
    if ends:
        description += f"; snapshots were taken in epochs {ends[0]} to {ends[1]}"
    figure = plots.plot_metric(metric, plain, later, ends, statistics)
    caption = f"{title}."
    if left_out := plots.epochs_beyond_axis(metric, plain, later, ends):
        numbers = ", ".join(map(str, left_out))
        caption += f" The axis leaves out stage 1's {'epoch' if len(left_out) == 1 else 'epochs'} {numbers}."
    return [Picture("metric", figure, f"{description}.", caption)]


def _loss_to_sort_by(candidate: dict[str, Any]) -> float:
    loss = candidate["loss"]
    return math.inf if loss is None else float(loss)


def _averages_table(run: StageOneRecord) -> str:
    """Make the HTML for the measurements by ``stop: averaged``; empty if there are none."""
    rows = []
    for record in run.average_records:
        loss = f"{record['averaged_loss']:.4f} ± {record['averaged_standard_error']:.4f}"
        gain = record["averaged_gain"]
        gain_text = "" if gain is None else f"{gain:.4f} ± {record['averaged_gain_standard_error']:.4f}"
        rows.append([str(record["epoch"]), str(record["averaged_window"]), loss, gain_text])
    heading = ("after epoch", "snapshots averaged", "loss on val", "gain over the best before")
    return details("The averaged weights, measured by stop: averaged", table(heading, rows)) if rows else ""


def _add_spectrum(page: Page, fractions: np.ndarray | None) -> None:
    """Add the fractions (k,) of the snapshots' variance along each direction, if they are known."""
    if fractions is None:
        return
    n_most = int(np.searchsorted(np.cumsum(fractions), 0.9 * fractions.sum())) + 1
    k = len(fractions)
    picture = Picture(
        "spectrum",
        plots.plot_spectrum(fractions),
        f"Fraction of the snapshots' variance along each of {k} directions: the first has {100 * fractions[0]:.2f} %, "
        f"all together {100 * fractions.sum():.2f} %.",
        f"Fraction of the snapshots' variance along each direction. The first {n_most} hold nine tenths of the sum of "
        f"all {k}.",
    )
    page.add("Subspace", [picture])


def _add_plane(page: Page, plane: PlaneView) -> None:
    statistics = ", with their own BatchNorm statistics" if plane.batch_norm else ""
    third = in_words(plane.third)
    off = distances(plane.snapshots.off)
    picture = Picture(
        "plane",
        plot_plane(plane),
        f"Loss in the plane through the start of stage 2, its last weights and {third}. The lowest loss on the grid is "
        f"{np.nanmin(plane.loss):.3g}. The snapshots lie {off} off the plane.",
        f"The true loss in the plane through the start of stage 2, its last weights and {third}, at {plane.loss.size} "
        f"points, on the same {plane.n_images:,} training samples{statistics}. Distances are between weights. "
        "Hollow points lie off the plane: their own loss differs from the surface's where they are drawn.",
    )
    page.add("The loss surface", [picture])


def _add_configuration(page: Page, sources: Mapping[str, str], stages: Mapping[str, Path]) -> None:
    """Add the run's sources, its last stage's package versions, and each stage's configuration."""
    versions = json.loads(read_regular(list(stages.values())[-1] / VERSIONS))
    texts = [
        details(f"Configuration of {stage} ({path})", f"<pre>{escape(read_regular(path).decode())}</pre>")
        for stage, folder in stages.items()
        if (path := folder / CONFIG).is_file()
    ]
    facts = table((), [*sources.items(), *versions.items()], kind="names")
    page.add("Configuration and versions", [], facts, "".join(texts))
