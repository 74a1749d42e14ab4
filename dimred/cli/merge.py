"""``dimred merge``: the best one network out of a folder of checkpoints, by any metric."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dimred.console import AsJson, note

if TYPE_CHECKING:
    from dimred.merging.trials import Progress


def merge(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINTS...", help="A folder; or files, folders of shards, globs: safetensors, .ckpt."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write; for shards, the folder.")],
    last: Annotated[int | None, typer.Option(help="Only the newest N.")] = None,
    from_step: Annotated[int | None, typer.Option(help="Only from this step on.")] = None,
    to_step: Annotated[int | None, typer.Option(help="Only up to this step.")] = None,
    order: Annotated[str, typer.Option(help="step: by the numbers in the names; name; or mtime.")] = "step",
    profile: Annotated[
        str | None,
        typer.Option(
            help="Without a metric: uniform, linear, exponential=DECAY, ema=WIDTH, merge-decay=cosine or 1-sqrt, or "
            "coefficients with commas between. [default: uniform]"
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the result, such as float32; default the checkpoints' own.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="The function that scores a candidate's path.")
    ] = None,
    metric_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Or a command with {}, whose last line is the score.")
    ] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="Lower is better.")] = False,
    maximize: Annotated[bool, typer.Option("--maximize", help="Higher is better.")] = False,
    budget: Annotated[int, typer.Option(help="Evaluations on the split search.")] = 300,
    timeout: Annotated[float, typer.Option(help="Seconds for one evaluation.")] = 3600.0,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 1,
    components: Annotated[int, typer.Option(help="Directions to search in.")] = 8,
    bound: Annotated[float, typer.Option(help="On each coordinate, in units of the checkpoints' own spread.")] = 3.0,
    prior: Annotated[float, typer.Option(help="Standard errors that one such unit in each direction costs.")] = 0.5,
    population: Annotated[int | None, typer.Option(help="Candidates a generation; default 4 + 3 ln k.")] = None,
    as_json: AsJson = False,
) -> None:
    """Average checkpoints, or search the best combination of them by a metric of your own.

    Works on checkpoints of PyTorch, Hugging Face, JAX (safetensors) and MindSpore, and writes their own layout. A call
    that was stopped is gone on with by the same call. BatchNorm statistics need to be re-estimated: the metric's file
    may have a function reestimate(candidate) for it.

    Example: dimred merge RUN --last 5 --out avg.safetensors

    Example: dimred merge RUN --metric my_metric.py:score --maximize --out best.safetensors
    """
    from dimred.merging.merge import merge as run

    with _live() as on_trial:
        record = run(
            checkpoints, out, last=last, from_step=from_step, to_step=to_step, order=order, profile=profile,
            dtype=dtype, metric=metric, metric_command=metric_command, minimize=minimize, maximize=maximize,
            budget=budget, timeout=timeout, seed=seed, components=components, bound=bound, prior=prior,
            population=population, on_trial=on_trial, note=note,
        )  # fmt: skip
    if record.get("table"):
        from dimred.merging.inputs import work_folder
        from dimred.report.merge_page import write_merge_page

        write_merge_page(record, work_folder(out))
    if as_json:
        print(json.dumps(record))
        return
    _print(record, out)


def _print(record: dict[str, Any], out: Path) -> None:
    """The inputs in order with their coefficients; the finalists; and what became of it."""
    listed = [[one["path"], str(one["step"]), f"{one['coefficient']:.4g}"] for one in record["checkpoints"]]
    _print_table(("checkpoint", "step", "coefficient"), listed)
    if record.get("table"):
        from dimred.merging.final import SPLITS, scores_of

        rows = [["*" if row["kept"] else "", row["kind"], row["name"], *scores_of(row)] for row in record["table"]]
        _print_table(("kept", "kind", "candidate", *SPLITS), rows)
        print(
            f"Kept {record['kept']['name']}: {record['why']}. {record['evaluations']} evaluations; {record['ended']}."
        )
    print(f"BatchNorm: {record['batch_norm']}.")
    print(f"{out}, {out}.json" + (f", {out}.merge/merge.html" if record.get("table") else ""))


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 240, markup=False).print(table)


@contextmanager
def _live() -> Iterator[Callable[["Progress"], None]]:
    """What the trials come to, on standard error: a live table on a terminal, a line each elsewhere."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(stderr=True)

    def line(progress: "Progress") -> str:
        trial, best = progress.trial, progress.best
        found = str(trial.score) if trial.score else f"failed: {trial.failed}"
        ahead = f"; best {best.score}, {best.candidate.name}" if best and best.score else ""
        where = f"{progress.spent}/{progress.budget}" if trial.split == "search" else trial.split
        return f"{where} {trial.candidate.kind} {trial.candidate.name}: {found}{ahead}"

    if not console.is_terminal:
        yield lambda progress: note(line(progress))
        return
    best_of: dict[str, Any] = {}
    with Live(console=console, transient=True) as live:

        def show(progress: "Progress") -> None:
            trial = progress.trial
            if progress.best is not None:
                best_of[progress.best.candidate.name] = progress.best
            table = Table("number", "kind", "candidate", "search", title=line(progress), box=None)
            for one in list(best_of.values())[-8:][::-1]:
                table.add_row(str(one.number), one.candidate.kind, one.candidate.name, str(one.score))
            live.update(table)
            if trial.failed:
                live.console.print(f"trial {trial.number} failed: {trial.failed}", markup=False)

        yield show
