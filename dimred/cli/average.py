"""``dimred average``: one network from a series of snapshots."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dimred.console import AsJson
from dimred.errors import ConfigError


def average(
    ckpt_dir: Annotated[Path, typer.Argument(metavar="CKPT_DIR", help="The folder of the snapshots (checkpoint_pca).")],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="A full checkpoint, for all that isn't averaged.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The checkpoint to write; an existing file is kept.")],
    last: Annotated[int | None, typer.Option(help="The mean of the latest N only (LAWA); default all (SWA).")] = None,
    decay: Annotated[
        float | None, typer.Option(help="Their exponential moving average (EMA) with this decay, not the mean.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Average snapshots: SWA, LAWA, or EMA. dimred merge has other profiles, and a search.

    BatchNorm statistics are those of WEIGHTS; dimred eval shows the accuracy with new ones, and --save keeps them.

    Example: dimred average device0_stage_1/checkpoint_stage_1/checkpoint_pca resnet-70_625.ckpt average.ckpt
    """
    from dimred.merging.average import average as write_average

    if decay is not None and not 0 <= decay < 1:
        raise ConfigError(f"--decay is {decay}; it must be at least 0 and below 1 (0.9 is usual)")
    profile = "uniform" if decay is None else f"exponential={decay}"
    record = write_average(ckpt_dir, out, profile=profile, last=last, rest=weights)
    if as_json:
        print(json.dumps(record))
        return
    kind = "mean" if decay is None else f"moving average, decay {decay},"
    print(f"{out}: {kind} of {len(record['checkpoints'])} snapshots")
