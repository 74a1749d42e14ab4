"""The report of a run: its pictures, and one page that shows them with words and tables."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from dimred.errors import ConfigError
from dimred.files.atomic import atomic_write, remove_leftovers
from dimred.files.run_names import CONFIG, LOCK, VERSIONS
from dimred.report import plots
from dimred.report.comparison import HEADINGS, TITLES, curves, rows_at, table_rows
from dimred.report.html import details, document, figure, key_figures, table
from dimred.report.record import StageOneRecord, StageTwoRecord

PAGE = "report.html"
_PICTURES = (
    "accuracy",
    "loss",
    "spectrum",
    "plane",
    "plane-near",
    "distance",
    "steps",
    "captured",
    "comparison",
    "curve",
)


def make_report_folder(out: Path) -> None:
    """Make the folder of a report; an earlier report may be in it.

    Raises:
        ConfigError: it holds something else, or can't be made.
    """
    own = {PAGE, LOCK, *(f"{name}.{suffix}" for name in _PICTURES for suffix in ("png", "svg"))}
    try:
        out.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
        others = sorted({path.name for path in out.iterdir()} - own)
    except OSError as error:
        why = error.strerror
        raise ConfigError(f"--out is {str(out)!r}, which can't be made ({why}); name another folder") from error
    if others:
        raise ConfigError(f"--out is {str(out)!r}, where {others[0]!r} is no part of a report; name another folder")


def write_report(
    out: Path, run: StageTwoRecord, plane: plots.PlaneView | None, comparison: dict[str, Any] | None
) -> Path:
    """Write ``report.html`` of a finished stage 2, and each picture as PNG and SVG; returns the page's path.

    Args:
        out: a folder, see ``make_report_folder``; files of an earlier report in it are replaced, one by one.
        run: what the run's files say.
        plane: None without a basis that has a mean.
        comparison: of ``dimred compare``, see ``dimred.report.comparison.collect``.
    """
    page, result, last = Page(out), run.result, run.stage_1.last_epoch
    by_epoch = {"0": result["accuracy_start"]} | result["accuracy_by_epoch"]
    searched = {last + int(epoch): accuracy for epoch, accuracy in by_epoch.items()}
    _add_curves(page, run.stage_1, run.stage_1.snapshot_epochs(run.basis), searched)
    _add_spectrum(page, None if run.basis is None else run.basis.explained_variance_ratio)
    if plane is not None:
        _add_plane(page, plane)
    _add_search(page, run)
    if comparison is not None:
        _add_comparison(page, comparison)
    sources = {name: source for name, source in result["sources"].items() if source}
    _add_configuration(page, sources, {"stage 1": run.stage_1.folder, "stage 2": run.folder})
    return page.write(f"Two-stage training: {run.folder.name}", _summary(run))


def write_stage_1_report(out: Path, run: StageOneRecord) -> Path:
    """Write ``report.html`` of a stage 1 alone, while it runs or after it; otherwise as ``write_report``."""
    page = Page(out)
    _add_curves(page, run, run.snapshot_epochs(), {})
    _add_spectrum(page, run.variance_shares())
    _add_configuration(page, {}, {"stage 1": run.folder})
    facts = [(str(run.last_epoch), "epochs done"), (str(len(run.snapshot_epochs())), "snapshots kept")]
    if run.accuracies:
        epoch, accuracy = list(run.accuracies.items())[-1]
        facts.insert(0, (_percent(accuracy), f"accuracy after epoch {epoch}"))
    if measured := [record for record in run.epochs if "averaged_loss" in record]:
        loss, epoch, width = (measured[-1][name] for name in ("averaged_loss", "epoch", "averaged_window"))
        facts.append((f"{loss:.4f}", f"loss on val of the mean of {width} snapshots, after epoch {epoch}"))
    return page.write(f"Stage 1: {run.folder.name}", key_figures(facts))


class Picture(NamedTuple):
    """A picture of a page."""

    name: str
    drawn: Figure
    says: str  # for readers who can't see it
    caption: str


class Page:
    """Writes the pictures of each section that is added, and in the end the page ``name`` that shows them.

    ``pictures`` are the names of those that an earlier page in the folder may have left.
    """

    def __init__(self, out: Path, name: str = PAGE, pictures: Sequence[str] = _PICTURES):
        self._out, self._name, self._pictures = out, name, pictures
        self._sections: list[tuple[str, str]] = []
        self._shown: set[str] = set()

    def add(self, heading: str, pictures: Sequence[Picture], before: str = "", after: str = "") -> None:
        """A section of pictures, with HTML before and after them."""
        shown = ""
        for name, drawn, says, caption in pictures:
            svg = plots.save_figure(drawn, self._out, name)
            shown += figure(name, svg, says, f"{caption} ({name}.png, {name}.svg)")
            self._shown.add(name)
        grid = f'<div class="figures">{shown}</div>' if pictures else ""
        self._sections.append((heading, f"{before}{grid}{after}"))

    def write(self, title: str, summary: str) -> Path:
        """Write the page; remove the pictures of an earlier report that it does not show."""
        atomic_write(self._out / self._name, document(title, summary, self._sections))
        for name in set(self._pictures) - self._shown:
            for suffix in ("png", "svg"):
                (self._out / f"{name}.{suffix}").unlink(missing_ok=True)
        return self._out / self._name


def _summary(run: StageTwoRecord) -> str:
    result, last = run.result, run.stage_1.epochs[-1]
    facts = [
        (_percent(last["accuracy"]), f"plain training, epoch {last['epoch']}"),
        (_percent(result["accuracy"]), f"after stage 2 of {result['epochs']} epochs"),
        (f"{result['accepted_steps']} of {result['steps']}", "steps accepted"),
    ]
    if basis := result["basis"]:
        facts.append((f"{basis['n_components']} of {basis['n_weights']:,}", "dimensions searched"))
    if "accuracy_reestimated" in result:
        facts.insert(2, (_percent(result["accuracy_reestimated"]), "the same, BatchNorm statistics re-estimated"))
    words = []
    if "kept" in result:
        kept = str(result["kept"])
        kept = f"epoch {kept}" if kept.isdecimal() else kept.replace("start", "its start")
        began = result.get("started_from", result["start"])
        without = " So no step of the search is in the network that was kept." if result["kept"] == "start" else ""
        words.append(f"Stage 2 began at {began!r} and kept {kept}, chosen by the loss on the val split.{without}")
    residual = result.get("residual", {})
    if residual.get("kind") == "continued":
        words.append(
            f"Outside the subspace {residual['optimizer']} went on, from {residual['factor']:.3g} of stage 1's last "
            f"rate, {residual['rate']:.3g}, to 0. Its steps add up to {result['moved_outside']:.3g}, those of the "
            f"search inside to {result['moved_inside']:.3g}."
        )
    if "stopped" in result:
        words.append(f"The search ended early: {result['stopped']}.")
    words.append("Accuracies are those on the evaluation split, as in result.json.")
    return key_figures(facts) + "".join(f"<p>{escape(text)}</p>" for text in words)


def _add_curves(page: Page, run: StageOneRecord, snapshot_epochs: Sequence[int], searched: Mapping[int, float]) -> None:
    """Accuracy of stage 1, and of stage 2 by epoch where there is one, from its start on; stage 1's loss."""
    pictures, plain = [], run.accuracies
    if plain:
        says = f"Accuracy over epochs. Plain training ends at {_percent(list(plain.values())[-1])}"
        if searched:
            points = list(searched.values())
            says += f"; stage 2 starts at {_percent(points[0])} and ends at {_percent(points[-1])}"
        taken = (snapshot_epochs[0], snapshot_epochs[-1]) if snapshot_epochs else None
        if taken:
            says += f"; snapshots were taken in epochs {taken[0]} to {taken[1]}"
        drawn = plots.plot_accuracy(plain, searched, taken, size=plots.NARROW)
        caption = "Accuracy over epochs. The axis begins at the 10th percentile of late training."
        pictures.append(Picture("accuracy", drawn, f"{says}.", caption))
    losses = [math.nan if record["loss"] is None else record["loss"] for record in run.epochs]
    drawn = plots.plot_loss([record["epoch"] for record in run.epochs], losses)
    says = f"Training loss of stage 1, from {losses[0]:.3g} to {losses[-1]:.3g}."
    page.add("Curves", [*pictures, Picture("loss", drawn, says, "Stage 1's training loss.")])


def _add_spectrum(page: Page, shares: np.ndarray | None) -> None:
    """The share (k,) of the snapshots' variance along each direction; nothing where it is not known."""
    if shares is None:
        return
    needed, k = int(np.searchsorted(np.cumsum(shares), 0.9 * shares.sum())) + 1, len(shares)
    page.add("Subspace", [Picture(
        "spectrum", plots.plot_spectrum(shares),
        f"Share of the snapshots' variance along each of {k} directions: the first has {_percent(shares[0])}, all "
        f"together {_percent(shares.sum())}.",
        f"How much of the snapshots' variance each direction holds. The first {needed} hold nine tenths of what all "
        f"{k} hold.",
    )])  # fmt: skip


def _add_plane(page: Page, plane: plots.PlaneView) -> None:
    whole, near = plane.whole.loss, plane.near.loss
    off = [f"{points.off.min():.3g} to {points.off.max():.3g}" for points in (plane.snapshots, plane.stops)]
    page.add("Where it went", [
        Picture(
            "plane", plots.plot_plane(plane.whole, plane),
            f"Loss surface with the path of both stages. The lowest loss on the grid is {np.nanmin(whole):.3g}.",
            "The true loss of the plane through the snapshots' mean and the first two directions: the network at each "
            f"of {whole.size} points, on the same {plane.n_images:,} training images, with BatchNorm statistics of "
            "these images. The points are projections: their own loss is not that of the plane below them.",
        ),
        Picture(
            "plane-near", plots.plot_plane(plane.near, plane),
            f"The part of the plane around stage 2. Its loss goes from {np.nanmin(near):.4g} to {np.nanmax(near):.4g}.",
            "The same plane, the part around stage 2.",
        ),
        Picture(
            "distance", plots.plot_distances(plane),
            f"Distance off the plane: stage 1's snapshots {off[0]}, stage 2's points {off[1]}.",
            "How far each point lies off the plane that is shown.",
        ),
    ])  # fmt: skip


def _add_search(page: Page, run: StageTwoRecord) -> None:
    result, shares = run.result, [share for step in run.steps if (share := step["captured_share"]) is not None]
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


def _add_comparison(page: Page, summary: dict[str, Any]) -> None:
    """The table and the picture of the longest stage 1; with several epochs the curve over them too."""
    last = rows_at(summary, summary["at"][-1])
    rows = {TITLES[row["method"]].replace("**", ""): row for row in last}
    best, chosen = (
        max(rows, key=lambda name: rows[name][key]["mean"]) for key in ("test_reestimated", "val_reestimated")
    )
    scores = [(name, row["test_reestimated"]["mean"], row["test_reestimated"]["spread"]) for name, row in rows.items()]
    words = (
        f"From the same stage 1, seeds {', '.join(map(str, summary['seeds']))}, to epoch {last[0]['at']}. BatchNorm is "
        f"re-estimated in every row. The val split chose, the test split reports; by val alone one would have taken: "
        f"{chosen}. Passes and seconds are those after stage 1, in epochs of the training split."
    )
    pictures = [Picture(
        "comparison", plots.plot_comparison(scores),
        f"Test accuracy of {len(rows)} methods; the best is {best} with "
        f"{_percent(rows[best]['test_reestimated']['mean'])}.",
        "Test accuracy, BatchNorm re-estimated; bars are the spread over the seeds.",
    )]  # fmt: skip
    if len(summary["at"]) > 1:
        pictures.append(Picture(
            "curve", plots.plot_curve(curves(summary)),
            f"Test accuracy over passes, stage 1 to epochs {', '.join(map(str, summary['at']))}.",
            "Test accuracy over all forward and backward passes, one line a method; bands are the spread.",
        ))  # fmt: skip
    body = table(HEADINGS, table_rows(last, len(summary["seeds"])))
    page.add("Comparison", pictures, before=f"<p>{escape(words)}</p>{body}")


def _add_configuration(page: Page, sources: Mapping[str, str], stages: Mapping[str, Path]) -> None:
    """What the run was made from, the versions that the last stage ran with, and each stage's configuration."""
    versions = json.loads((list(stages.values())[-1] / VERSIONS).read_text(encoding="utf-8"))
    texts = [
        details(f"Configuration of {stage} ({path})", path.read_text(encoding="utf-8"))
        for stage, folder in stages.items()
        if (path := folder / CONFIG).is_file()
    ]
    facts = table((), [*sources.items(), *versions.items()], kind="names")
    page.add("Configuration and versions", [], facts, "".join(texts))


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
