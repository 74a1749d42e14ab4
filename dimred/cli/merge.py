"""``dimred merge``: make one network out of checkpoints, without MindSpore."""

import json
from inspect import signature
from pathlib import Path
from typing import Annotated

import typer

from dimred.averaging.windows import PROFILES
from dimred.cli.options import options_in_errors
from dimred.console import AsJson, print_table


def merge(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINTS...", help="A folder; or files (.safetensors, .ckpt), folders of shards, globs."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write; for shards, the folder.")],
    last: Annotated[int | None, typer.Option(help="Take only the newest N.")] = None,
    from_step: Annotated[int | None, typer.Option(help="First step to take.")] = None,
    to_step: Annotated[int | None, typer.Option(help="Last step to take.")] = None,
    order: Annotated[
        str,
        typer.Option(help="Order by step (the numbers in the names), name or mtime."),
    ] = "step",
    profile: Annotated[
        str | None,
        typer.Option(help=f"How checkpoints are weighted without a metric, by default uniform: {PROFILES}."),
    ] = None,
    names_from: Annotated[
        Path | None,
        typer.Option(
            help="Average only what this checkpoint or manifest.json names; by default all floats.",
            exists=True,
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of the result, such as float32; by default the checkpoints' type.")
    ] = None,
    rest: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to copy everything else from; by default the last."),
    ] = None,
    lora_rank: Annotated[int | None, typer.Option(help="For LoRA adapters: largest rank; exact by default.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="Function that scores a candidate by its path or tensors."),
    ] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="A lower score of the metric is better.")] = False,
    maximize: Annotated[bool, typer.Option("--maximize", help="A higher score of the metric is better.")] = False,
    budget: Annotated[
        int | None,
        typer.Option(help="At most this many evaluations on the metric's split 'search'; by default all candidates."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of one evaluation.")] = 3600.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the scores of a call that was stopped, killed or failed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Average checkpoints, or choose the best of many averages by a metric of your own.

    It reads checkpoints of PyTorch, Hugging Face, JAX (safetensors) and MindSpore, and keeps their layout.
    BatchNorm statistics must be re-estimated: the metric's file may define a function reestimate(candidate) for that;
    for MindSpore, dimred eval does it. For LoRA adapters, it averages the updates that they add to the weights.

    Example: dimred merge RUN --last 5 --out avg.safetensors

    Example: dimred merge RUN --metric my_metric.py:score --maximize --out best.safetensors
    """
    from dimred.merging.merge import merge as run
    from dimred.merging.record import sentences_of, tables_of

    with options_in_errors(*signature(run).parameters):
        record = run(
            checkpoints,
            out,
            last=last,
            from_step=from_step,
            to_step=to_step,
            order=order,
            profile=profile,
            names_from=names_from,
            dtype=dtype,
            rest=rest,
            lora_rank=lora_rank,
            metric=metric,
            minimize=minimize,
            maximize=maximize,
            budget=budget,
            timeout=timeout,
            resume=resume,
        )
    if as_json:
        print(json.dumps(record))
        return
    for headings, rows in tables_of(record):
        print_table(headings, rows)
    print(*sentences_of(record), sep="\n")
    print(f"{out}, {out}.json" + (f", {out}.merge/scores.jsonl" if "table" in record else ""))
