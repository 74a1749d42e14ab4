"""Measure how cost grows with work, and write ``growth.md`` and its pictures: ``python -m tests.benchmarks.growth``.

Give names of subjects to measure only these: pca, search, merge, files, records, ranks. All of them take half an hour
of an idle machine with two cores, and 20 GB of disk meanwhile.

Each measurement is a process of its own, in turns with its peers, three times or until it has taken ten seconds in all;
once, where the process itself takes the median of several. The figures are added to ``growth.jsonl`` as they come, and
a call goes on after those that are there; remove the file to begin another sitting. ``--tiny`` measures the first point
of each subject once, for a page in a folder of its own.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

from tests.helpers.peers import COMPLETE

HERE = Path(__file__).parent
ENOUGH_SECONDS, TIMEOUT_SECONDS = 10, 600
EPOCH_SECONDS = 1_281_167 / 2_000  # of ImageNet, at the published rate of a device, in images a second
Point = dict[str, int]
Figures = dict[str, float]
Row = dict[str, Any]


class Engine(NamedTuple):
    """A way of doing a subject's work.

    Attributes:
        name: its name in the subject's program.
        peer: the engine whose seconds it is compared with.
        takes: whether it is measured at a point.
    """

    name: str
    peer: str = ""
    takes: Callable[[Point], bool] = lambda point: True


class Panel(NamedTuple):
    """A picture of seconds over one key, where the others have these values."""

    x: str
    at: Point
    y: str = "seconds"


class Subject(NamedTuple):
    """What is measured by one program, and how it is shown.

    Attributes:
        title: the heading.
        words: what is measured.
        program: the module.
        points: the points, the smallest first.
        engines: the ways of doing the work, in turns.
        panels: the pictures.
        columns: heading -> text from an engine's figures and those of its peer.
        rounds: how often each engine is measured at most.
    """

    title: str
    words: str
    program: str
    points: Sequence[Point]
    engines: Sequence[Engine]
    panels: Sequence[Panel]
    columns: dict[str, Callable[[Figures, Figures], str]]
    rounds: int = 1


def times(key: str, of: str = "") -> Callable[[Figures, Figures], str]:
    """Return a column with a figure as a multiple of the peer's, or of another figure of the same engine."""
    return lambda own, peer: _ratio(own.get(key), own.get(of) if of else peer.get(key))


def _ratio(value: float | None, of: float | None) -> str:
    return f"{value / of:.2f}" if value is not None and of else ""


def trials(own: Figures, peer: Figures) -> str:
    return f"{own['trials']:.0f}" if "trials" in own else ""


MEMORY = {"peak, MB": lambda own, _: f"{own['peak'] / 1e6:,.0f}"}
PEER: dict[str, Callable[[Figures, Figures], str]] = {"of its peer's": times("seconds")}
ONCE = "reading and writing once"

SUBJECTS = {
    "pca": Subject(
        "A basis",
        "`dimred pca` of N snapshots, 32 directions or N - 1. The peer reads each snapshot once, and writes "
        "and flushes as many bytes as the directions have. The files are in the page cache.",
        "pca_engine",
        [
            {"weights": m * 10**6, "snapshots": n}
            for m, n in ((1, 10), (1, 40), (10, 10), (10, 40), (10, 160), (40, 40), (100, 10))
        ],
        [
            Engine(ONCE),
            Engine("dimred pca", ONCE),
            Engine("MindSpore boost", ONCE, lambda p: p["weights"] <= 1e7 and p["snapshots"] <= 40),
        ],
        [
            Panel("weights", {"snapshots": 40}),
            Panel("weights", {"snapshots": 10}),
            Panel("snapshots", {"weights": 10**7}),
            Panel("weights", {"snapshots": 40}, "peak"),
        ],
        PEER | MEMORY | {"read, of its peer's": times("read"), "written": times("written")},
        rounds=3,
    ),
    "search": Subject(
        "A step of a search",
        "ResNet-18 of four widths, 32 images of 32 pixels, at most two trials, k "
        "directions. The peer is a plain step of MindSpore's `TrainOneStepCell` with momentum. The necessary parts are "
        "a gradient, the trials' losses, and three passes over the basis.",
        "step_engine",
        [{"weights": m, "k": 32} for m in (270_000, 3_000_000, 11_200_000, 25_000_000)]
        + [{"weights": 11_200_000, "k": k} for k in (8, 128)],
        [
            Engine("a plain step"),
            Engine("a search step", "a plain step"),
            Engine("MindSpore boost's step", "a plain step", lambda p: p["k"] == 32),
        ],
        [Panel("weights", {"k": 32}), Panel("k", {"weights": 11_200_000})],
        PEER | {"of its parts": times("seconds", "parts"), "trials": trials} | MEMORY,
    ),
    "merge": Subject(
        "A merge",
        "The mean of bfloat16 checkpoints, from the page cache. The peer reads each once, and writes and "
        "flushes one. mergekit is measured with its imports.",
        "merge_engine",
        [{"megabytes": m, "files": n} for m, n in ((100, 20), (800, 5), (800, 20), (800, 80), (8000, 20))],
        [
            Engine(ONCE),
            Engine("dimred merge", ONCE),
            Engine("dimred merge, ema=0.1", ONCE),
            Engine("a float64 loop", ONCE, lambda p: p["megabytes"] <= 800),
            Engine("mergekit", ONCE, lambda _: COMPLETE.exists()),
        ],
        [Panel("megabytes", {"files": 20}), Panel("files", {"megabytes": 800})],
        PEER | MEMORY,
        rounds=3,
    ),
    "files": Subject(
        "Snapshots and states",
        "What a run writes and reads, beside writing and flushing, or reading, as many bytes. "
        "An epoch is ImageNet's, at 2,000 images a second: 641 seconds.",
        "files_engine",
        [{"weights": m * 10**6} for m in (1, 10, 100)],
        [
            Engine("writing a snapshot's bytes"),
            Engine("appending a snapshot", "writing a snapshot's bytes"),
            Engine("MindSpore's save_checkpoint", "writing a snapshot's bytes"),
            Engine("writing a state's bytes"),
            Engine("saving a state", "writing a state's bytes"),
            Engine("MindSpore's save_checkpoint of a state", "writing a state's bytes"),
            Engine("reading a state's bytes"),
            Engine("reading a state", "reading a state's bytes"),
            Engine("MindSpore's load_checkpoint", "reading a state's bytes"),
        ],
        [Panel("weights", {})],
        PEER | {"of an epoch": lambda own, _: f"{own['seconds'] / EPOCH_SECONDS:.2%}"} | MEMORY,
    ),
    "records": Subject(
        "Records",
        "A search in 32 directions that has made so many steps, each with a record, is resumed after its "
        "last one and reported with all pictures. The peer reads the file of records once.",
        "records_engine",
        [{"steps": n} for n in (10**4, 10**5, 10**6)],
        [
            Engine("reading the records once"),
            Engine("resuming", "reading the records once"),
            Engine("dimred report", "reading the records once"),
            Engine("what saving a state does with the records", "reading the records once"),
        ],
        [Panel("steps", {}), Panel("steps", {}, "peak")],
        MEMORY,
    ),
    "ranks": Subject(
        "Several ranks",
        "A step of a network of 0.5 M weights, with the votes of the ranks in it. Its parts are the "
        "same step of one rank, which all take at the same time, and a reduction of as many numbers. Eight ranks share "
        "the cores.",
        "ranks_engine",
        [{"ranks": n} for n in (1, 2, 4, 8)],
        [Engine("a step")],
        [Panel("ranks", {})],
        {
            "of its parts": times("seconds", "parts"),
            "with a wait for the votes": times("wait", "parts"),
            "a step alone, ms": lambda own, _: f"{1e3 * own['alone']:.1f}",
            "a reduction, ms": lambda own, _: f"{1e3 * own['reduction']:.1f}",
        },
    ),
}


def measure(name: str, log: Path, tiny: bool) -> None:
    """Measure what is missing of a subject, and add it to the log."""
    subject = SUBJECTS[name]
    for point in subject.points[: 1 if tiny else None]:
        engines = [engine.name for engine in subject.engines if engine.takes(point)]
        with TemporaryDirectory(prefix="growth-") as folder:
            is_prepared = False
            rounds = 1 if tiny else subject.rounds
            while left := [one for one in engines if _is_due(rows_at(read(log, name), one, point), rounds)]:
                if not is_prepared:
                    run(subject.program, "prepare", Path(folder), point)
                    is_prepared = True
                for engine in left:
                    started = time.perf_counter()
                    figures = run(subject.program, engine, Path(folder), point)
                    row = {"subject": name, "engine": engine, "point": point, "took": time.perf_counter() - started}
                    with log.open("a") as file:
                        file.write(json.dumps(row | {"figures": figures}) + "\n")
                    print(f"{name}: {engine} {point} {figures}", flush=True)


def _is_due(rows: Sequence[Row], rounds: int) -> bool:
    return len(rows) < rounds and sum(row["took"] for row in rows) < ENOUGH_SECONDS


def run(program: str, engine: str, folder: Path, point: Point) -> Figures:
    """Run one engine of a program in a process of its own, and return its figures; none if it fails."""
    command = [sys.executable, "-m", f"tests.benchmarks.{program}", engine, folder]
    command += [f"{key}={value}" for key, value in point.items()]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode:
        print(f"{engine} {point} failed: {done.stderr[-2000:]}", file=sys.stderr)
        return {}
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def read(log: Path, subject: str) -> list[Row]:
    """Read the rows of a subject, which stand after the log's first line."""
    rows = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    return [row for row in rows if row["subject"] == subject]


def begin(log: Path) -> None:
    """Write the log's first line, which says where and when the sitting began."""
    if log.exists():
        return
    cpu = next(line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    machine = f"{os.uname().nodename}: {len(os.sched_getaffinity(0))} cores of {cpu}, {memory:.0f} GB"
    log.write_text(json.dumps({"machine": machine, "date": time.strftime("%Y-%m-%d"), "commit": commit.strip()}) + "\n")


def median(rows: Iterable[Row]) -> Figures:
    """Return the medians of the figures over the rounds."""
    figures = [row["figures"] for row in rows if row["figures"]]
    return {key: statistics.median(one[key] for one in figures) for key in (figures[0] if figures else ())}


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Fit y = c x^slope by least squares of the logarithms."""
    fit = statistics.linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys])
    return float(fit.slope)


class Curve(NamedTuple):
    """An engine's medians over a panel's key."""

    engine: str
    xs: list[int]
    ys: list[float]


def curves(subject: Subject, rows: Sequence[Row], panel: Panel) -> Iterator[Curve]:
    """Yield the curves of a panel that have at least two points; parts of a step have one of their own."""
    for engine in subject.engines:
        for key, name in ((panel.y, engine.name), ("parts", f"the parts of {engine.name}")):
            points = [one for one in subject.points if panel.at.items() <= one.items()]
            of_points = [(one[panel.x], median(rows_at(rows, engine.name, one))) for one in points]
            values = sorted((x, figures[key]) for x, figures in of_points if key in figures)
            if len(values) > 1 and not (key == "parts" and panel.y != "seconds"):
                yield Curve(name, [x for x, _ in values], [y for _, y in values])


def rows_at(rows: Iterable[Row], engine: str, point: Point) -> list[Row]:
    return [row for row in rows if (row["engine"], row["point"]) == (engine, point)]


def table(subject: Subject, rows: Sequence[Row]) -> str:
    """Tabulate all points of a subject."""
    keys = list(subject.points[0])
    lines = [
        f"| {' | '.join([*keys, '', 'seconds', 'lowest to highest', *subject.columns])} |",
        "|" + "---:|" * len(keys) + "---|" + "---:|" * (2 + len(subject.columns)),
    ]
    for point in subject.points:
        for engine in subject.engines:
            of_engine = rows_at(rows, engine.name, point)
            if not (own := median(of_engine)):
                continue
            peer = median(rows_at(rows, engine.peer, point))
            seconds = sorted(row["figures"]["seconds"] for row in of_engine if row["figures"])
            spread = f"{short(seconds[0])} to {short(seconds[-1])}" if len(seconds) > 1 else ""
            cells = [f"{point[key]:,}" for key in keys] + [engine.name, short(own["seconds"]), spread]
            cells += [column(own, peer) for column in subject.columns.values()]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def short(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"


def slopes(subject: Subject, rows: Sequence[Row]) -> str:
    """Tabulate the slopes of a subject's curves: over all points, and between the last two."""
    lines = ["| slope of | over | where | all points | last two |", "|---|---|---|---:|---:|"]
    for panel in subject.panels:
        where = ", ".join(f"{key} {value:,}" for key, value in panel.at.items())
        for curve in curves(subject, rows, panel):
            values = f"{slope(curve.xs, curve.ys):.2f} | {slope(curve.xs[-2:], curve.ys[-2:]):.2f}"
            lines.append(f"| {curve.engine}, {panel.y} | {panel.x} | {where} | {values} |")
    return "\n".join(lines)


def draw(subject: Subject, rows: Sequence[Row], path: Path) -> None:
    """Draw the panels of a subject side by side, with logarithmic axes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 9}):
        figure = Figure(figsize=(4 * len(subject.panels), 4.2), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(subject.panels), squeeze=False)[0], subject.panels, strict=True):
            for curve in curves(subject, rows, panel):
                style = "--" if curve.engine.startswith("the parts") else "-"
                factor = 1e-6 if panel.y == "peak" else 1
                axes.loglog(curve.xs, [factor * y for y in curve.ys], f"o{style}", ms=4, label=curve.engine)
            where = ", ".join(f"{key} {value:,}" for key, value in panel.at.items())
            axes.set(xlabel=panel.x, ylabel="peak memory, MB" if panel.y == "peak" else panel.y, title=where)
            axes.grid(color="#e5e5e5")
        entries = figure.axes[0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, metadata={"Date": None})


def write_page(out: Path) -> None:
    """Write ``growth.md`` and the pictures of what was measured."""
    log = out / "growth.jsonl"
    sitting, everything = json.loads(log.read_text().splitlines()[0]), {name: read(log, name) for name in SUBJECTS}
    minutes = sum(row["took"] for rows in everything.values() for row in rows) / 60
    parts = [
        "# How cost grows with work",
        f"`python -m tests.benchmarks.growth`, {sitting['date']}, commit {sitting['commit']}, on {sitting['machine']}; "
        f"{minutes:.0f} minutes. Seconds are medians of up to three processes in turns with their peers, without "
        "imports. A slope s is that of a power law, seconds ~ x^s; with work that is linear it is 1, and less where a "
        "constant part is left.",
    ]
    for name, subject in SUBJECTS.items():
        if rows := everything[name]:
            draw(subject, rows, out / f"growth_{name}.svg")
            picture = f"![Seconds over {subject.panels[0].x}](growth_{name}.svg)"
            parts += [f"## {subject.title}", subject.words, picture, table(subject, rows), slopes(subject, rows)]
    (out / "growth.md").write_text("\n\n".join(parts) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []], metavar="SUBJECT")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    out = Path(mkdtemp(prefix="growth-")) if given.tiny else HERE
    begin(out / "growth.jsonl")
    for name in given.subjects or SUBJECTS:
        measure(name, out / "growth.jsonl", given.tiny)
    write_page(out)  # not before, because a process that is started counts the memory of this one as its own peak
    print(out / "growth.md")


if __name__ == "__main__":
    main()
