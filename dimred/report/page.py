"""One page about a run: words, tables and SVG pictures in one HTML file, without script or network."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dimred.errors import ConfigError
from dimred.files.atomic import atomic_write, remove_leftovers
from dimred.files.run_names import CONFIG, LOCK, VERSIONS
from dimred.report import plots
from dimred.report.comparison import HEADINGS, TITLES, table_rows
from dimred.report.plane import PlaneView, plot_distances, plot_plane
from dimred.report.record import StageOneRecord, StageTwoRecord

PAGE = "report.html"
_PICTURES = ("accuracy", "loss", "spectrum", "plane", "plane-near", "distance", "steps", "captured", "comparison")


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


def write_report(out: Path, run: StageTwoRecord, plane: PlaneView | None, comparison: dict[str, Any] | None) -> Path:
    """Write ``report.html`` of a finished stage 2, and each picture as PNG and SVG.

    Args:
        out: a folder, see ``make_report_folder``; files of an earlier report in it are replaced, one by one.
        run: what the run's files say.
        plane: None for a basis without a mean.
        comparison: of ``dimred compare``, see ``dimred.report.comparison.collect``.

    Returns:
        The page's path.
    """
    page, result, last = _Page(out), run.result, run.stage_1.last_epoch
    searched = {last: result["accuracy_start"]}
    searched |= {last + int(epoch): accuracy for epoch, accuracy in result["accuracy_by_epoch"].items()}
    _add_curves(page, run.stage_1, run.stage_1.snapshot_epochs(run.basis), searched)
    _add_spectrum(page, run.basis.explained_variance_ratio)
    if plane is not None:
        _add_plane(page, plane)
    _add_search(page, run)
    if comparison is not None:
        _add_comparison(page, comparison)
    _add_configuration(page, result["sources"], {"stage 1": run.stage_1.folder, "stage 2": run.folder})
    return page.write(f"Two-stage training: {run.folder.name}", _summary(run))


def write_stage_1_report(out: Path, run: StageOneRecord) -> Path:
    """Write ``report.html`` of a stage 1 alone, while it runs or after it; otherwise as ``write_report``."""
    page = _Page(out)
    _add_curves(page, run, run.snapshot_epochs(), {})
    _add_spectrum(page, run.variance_shares())
    _add_configuration(page, {}, {"stage 1": run.folder})
    facts = [(str(run.last_epoch), "epochs done"), (str(len(run.snapshot_epochs())), "snapshots kept")]
    if run.accuracies:
        epoch, accuracy = list(run.accuracies.items())[-1]
        facts.insert(0, (_percent(accuracy), f"accuracy after epoch {epoch}"))
    return page.write(f"Stage 1: {run.folder.name}", _key_figures(facts))


class _Page:
    """Writes pictures as they are added, then the page that shows them."""

    def __init__(self, out: Path):
        self._out = out
        self._sections: list[tuple[str, str]] = []
        self._shown: set[str] = set()

    def picture(self, name: str, drawn: Figure, says: str, caption: str) -> str:
        """Write a picture, and give its place on the page; ``says`` is for readers who can't see it."""
        self._shown.add(name)
        svg = plots.save_figure(drawn, self._out, name)
        return figure(name, svg, says, f"{caption} ({name}.png, {name}.svg)")

    def add(self, heading: str, figures: Sequence[str], before: str = "", after: str = "") -> None:
        """A section of figures, with HTML before and after them."""
        shown = f'<div class="figures">{"".join(figures)}</div>' if figures else ""
        self._sections.append((heading, f"{before}{shown}{after}"))

    def write(self, title: str, summary: str) -> Path:
        """Write the page; remove the pictures of an earlier report that it does not show."""
        atomic_write(self._out / PAGE, document(title, summary, self._sections))
        for name in set(_PICTURES) - self._shown:
            for suffix in ("png", "svg"):
                (self._out / f"{name}.{suffix}").unlink(missing_ok=True)
        return self._out / PAGE


def _summary(run: StageTwoRecord) -> str:
    result, last, basis = run.result, run.stage_1.epochs[-1], run.result["basis"]
    facts = [
        (_percent(last["accuracy"]), f"plain training, epoch {last['epoch']}"),
        (_percent(result["accuracy"]), f"after stage 2 of {result['epochs']} epochs"),
        (f"{result['accepted_steps']} of {result['steps']}", "steps accepted"),
        (f"{basis['n_components']} of {basis['n_weights']:,}", "dimensions searched"),
    ]
    if "accuracy_reestimated" in result:
        facts.insert(2, (_percent(result["accuracy_reestimated"]), "the same, BatchNorm statistics re-estimated"))
    words = ""
    if "kept" in result:
        began, kept = result.get("started_from", result["start"]), f"epoch {result['kept']}"
        without = ""
        if result["kept"] == "start":
            kept, without = "its start", " So no step of the search is in the network that was kept."
        words += (
            f"<p>Stage 2 began at {escape(repr(began))} and kept {kept}, the lowest loss on the val split.{without}</p>"
        )
    if "stopped" in result:
        words += f"<p>The search ended early: {escape(result['stopped'])}.</p>"
    return f"{_key_figures(facts)}{words}<p>Accuracies are those on the evaluation split, as in result.json.</p>"


def _add_curves(
    page: _Page, run: StageOneRecord, snapshot_epochs: Sequence[int], searched: Mapping[int, float]
) -> None:
    """Accuracy of stage 1, and of stage 2 by epoch where there is one, from its start on; stage 1's loss."""
    figures, plain = [], run.accuracies
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
        figures.append(page.picture("accuracy", drawn, f"{says}.", caption))
    losses = [math.nan if record["loss"] is None else record["loss"] for record in run.epochs]
    drawn = plots.plot_loss([record["epoch"] for record in run.epochs], losses)
    says = f"Training loss of stage 1, from {losses[0]:.3g} to {losses[-1]:.3g}."
    page.add("Curves", [*figures, page.picture("loss", drawn, says, "Stage 1's training loss.")])


def _add_spectrum(page: _Page, shares: np.ndarray | None) -> None:
    """The share (k,) of the snapshots' variance along each direction; nothing where it is not known."""
    if shares is None:
        return
    needed, k = int(np.searchsorted(np.cumsum(shares), 0.9 * shares.sum())) + 1, len(shares)
    drawn = page.picture(
        "spectrum", plots.plot_spectrum(shares),
        f"Share of the snapshots' variance along each of {k} directions: the first has {_percent(shares[0])}, all "
        f"together {_percent(shares.sum())}.",
        f"How much of the snapshots' variance each direction holds. The first {needed} hold nine tenths of what all "
        f"{k} hold.",
    )  # fmt: skip
    page.add("Subspace", [drawn])


def _add_plane(page: _Page, plane: PlaneView) -> None:
    whole, near, n_images = plane.whole.loss, plane.near.loss, plane.n_images
    off = [f"{points.off.min():.3g} to {points.off.max():.3g}" for points in (plane.snapshots, plane.stops)]
    figures = [
        page.picture(
            "plane", plot_plane(plane.whole, plane),
            f"Loss surface with the path of both stages. The lowest loss on the grid is {np.nanmin(whole):.3g}.",
            "The true loss of the plane through the snapshots' mean and the first two directions: the network at each "
            f"of {whole.size} points, on the same {n_images:,} training images, with BatchNorm statistics of these "
            "images. The points are projections: their own loss is not that of the plane below them.",
        ),
        page.picture(
            "plane-near", plot_plane(plane.near, plane),
            f"The part of the plane around stage 2. Its loss goes from {np.nanmin(near):.4g} to {np.nanmax(near):.4g}.",
            "The same plane, the part around stage 2.",
        ),
        page.picture(
            "distance", plot_distances(plane),
            f"Distance off the plane: stage 1's snapshots {off[0]}, stage 2's points {off[1]}.",
            "How far each point lies off the plane that is shown.",
        ),
    ]  # fmt: skip
    page.add("Where it went", figures)


def _add_search(page: _Page, run: StageTwoRecord) -> None:
    result, shares = run.result, [share for step in run.steps if (share := step["captured_share"]) is not None]
    mean = f"{100 * float(np.mean(shares)):.2g} %" if shares else "unknown"
    figures = [
        page.picture(
            "steps", plots.plot_steps(run.steps),
            f"Loss of each step's batch; {result['accepted_steps']} of {result['steps']} steps were accepted, with "
            f"{result['trials']} trials.",
            "Each step's batch before and after the step, and the trials it took.",
        ),
        page.picture(
            "captured", plots.plot_captured(run.steps),
            f"Share of the gradient inside the subspace, {mean} in the mean.",
            "Share of the gradient's squared length that lies inside the subspace.",
        ),
    ]  # fmt: skip
    page.add("The search, step by step", figures)


def _add_comparison(page: _Page, summary: dict[str, Any]) -> None:
    rows = {TITLES[row["method"]].replace("**", ""): row for row in summary["rows"]}
    best, chosen = (
        max(rows, key=lambda name: rows[name][score]["mean"]) for score in ("test_reestimated", "val_reestimated")
    )
    scores = {name: row["test_reestimated"] for name, row in rows.items()}
    drawn = page.picture(
        "comparison", plots.plot_comparison([(name, test["mean"], test["spread"]) for name, test in scores.items()]),
        f"Test accuracy of {len(scores)} methods; the best is {best} with {_percent(scores[best]['mean'])}.",
        "Test accuracy, BatchNorm re-estimated; bars are the spread over the seeds.",
    )  # fmt: skip
    words = (
        f"From the same stage 1, seeds {', '.join(map(str, summary['seeds']))}. The val split chose, the test split "
        f"reports; by val alone one would have taken: {chosen}. Costs are those after stage 1, passes in epochs of the "
        "training split."
    )
    page.add("Comparison", [drawn], before=f"<p>{escape(words)}</p>{table(HEADINGS, table_rows(summary))}")


def _add_configuration(page: _Page, sources: Mapping[str, str], stages: Mapping[str, Path]) -> None:
    """What the run was made from, the versions that the last stage ran with, and each stage's configuration."""
    versions = json.loads((list(stages.values())[-1] / VERSIONS).read_text(encoding="utf-8"))
    facts = table((), [*sources.items(), *versions.items()], kind="names")
    configurations = ""
    for stage, folder in stages.items():
        if (path := folder / CONFIG).is_file():
            configurations += details(f"Configuration of {stage} ({path})", path.read_text(encoding="utf-8"))
    page.add("Configuration and versions", [], facts, configurations)


def document(title: str, summary: str, sections: Sequence[tuple[str, str]]) -> str:
    """The whole HTML document: its title, HTML below it, then (heading, HTML) each, linked at the top."""
    links, parts = [], []
    for heading, content in sections:
        anchor = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
        links.append(f'<a href="#{anchor}">{escape(heading)}</a>')
        parts.append(f'<section id="{anchor}">\n<h2>{escape(heading)}</h2>\n{content}\n</section>')
    own = files("dimred.report")
    return Template(own.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=own.joinpath("style.css").read_text(encoding="utf-8"),
        summary=summary,
        links=" ".join(links),
        sections="\n".join(parts),
    )


def figure(name: str, svg: str, says: str, caption: str) -> str:
    """A picture: its name, unique on the page; the SVG file's text; words for who can't see it; words below it."""
    drawing = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    drawing = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", drawing)  # ids are the page's, not the picture's
    drawing = drawing.replace("<svg ", f'<svg role="img" aria-label="{escape(says, quote=True)}" ', 1)
    return f'<figure id="figure-{name}">\n{drawing}\n<figcaption>{escape(caption)}</figcaption>\n</figure>'


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table that scrolls sideways by itself where it is too wide; ``**text**`` is bold."""

    def text(cell: str) -> str:
        return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(cell))

    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in heading)
    head = f"<thead><tr>{head}</tr></thead>" if heading else ""
    body = "\n".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}">{head}<tbody>\n{body}\n</tbody></table></div>'


def details(summary: str, text: str) -> str:
    """Preformatted text below a line that opens it."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def _key_figures(facts: Iterable[tuple[str, str]]) -> str:
    """Few figures, large: (value, what it is) each."""
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in facts)
    return f'<div class="key">{cells}</div>'


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
