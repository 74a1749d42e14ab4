"""``dimred merge``: average checkpoints, or choose the best of many averages by a metric."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dimred.console import AsJson, print_table


def merge(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINTS...", help="A folder; or files, folders of shards, globs: safetensors, .ckpt."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write; for shards, the folder.")],
    last: Annotated[int | None, typer.Option(help="Take the newest N only.")] = None,
    from_step: Annotated[int | None, typer.Option(help="First step to take.")] = None,
    to_step: Annotated[int | None, typer.Option(help="Last step to take.")] = None,
    order: Annotated[str, typer.Option(help="Sort by step (numbers in the names), name or mtime.")] = "step",
    profile: Annotated[
        str | None,
        typer.Option(
            help="Without a metric: uniform, linear, exponential=DECAY, ema=WIDTH, merge-decay=cosine or 1-sqrt, or "
            "coefficients with commas between. [default: uniform]"
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of the result, such as float32; default that of the checkpoints.")
    ] = None,
    rest: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint to copy all else from, such as a full one beside snapshots of the trainable "
            "weights; default the last."
        ),
    ] = None,
    lora_rank: Annotated[
        int | None, typer.Option(help="Of LoRA adapters: largest rank of the result; default no limit, exact.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="Function that scores the path of a candidate.")
    ] = None,
    metric_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Command with {} for the path, whose last line is the score.")
    ] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="Lower is better.")] = False,
    maximize: Annotated[bool, typer.Option("--maximize", help="Higher is better.")] = False,
    budget: Annotated[
        int | None, typer.Option(help="Most evaluations on the split search; default: all candidates are scored.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one evaluation.")] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Average checkpoints, or choose the best of many averages by a metric of your own.

    Works on checkpoints of PyTorch, Hugging Face, JAX (safetensors) and MindSpore, and writes their own layout. A call
    that was stopped is gone on with by the same call. BatchNorm statistics need to be re-estimated: the metric's file
    may have a function reestimate(candidate) for it; for MindSpore, dimred eval does it. The mean of LoRA adapters is
    that of what they add to the network.

    Example: dimred merge RUN --last 5 --out avg.safetensors

    Example: dimred merge RUN --metric my_metric.py:score --maximize --out best.safetensors
    """
    from dimred.merging.merge import merge as run

    record = run(
        checkpoints, out, last=last, from_step=from_step, to_step=to_step, order=order, profile=profile, dtype=dtype,
        rest=rest, lora_rank=lora_rank, metric=metric, metric_command=metric_command, minimize=minimize,
        maximize=maximize, budget=budget, timeout=timeout,
    )  # fmt: skip
    if as_json:
        print(json.dumps(record))
        return
    _print(record, out)


def _print(record: dict[str, Any], out: Path) -> None:
    """Print the checkpoints with their coefficients, the best candidates, and the one that was kept."""
    from dimred.merging.record import sentences_of, tables_of

    for headings, rows in tables_of(record):
        print_table(headings, rows)
    print(*sentences_of(record), sep="\n")
    print(f"{out}, {out}.json" + (f", {out}.merge/scores.jsonl" if "table" in record else ""))
