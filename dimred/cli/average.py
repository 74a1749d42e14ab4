"""``dimred average``: one network from a series of snapshots."""

from pathlib import Path
from typing import Annotated

import typer

from dimred.errors import ConfigError


def average(
    ckpt_dir: Annotated[Path, typer.Argument(metavar="CKPT_DIR", help="The folder of the snapshots (checkpoint_pca).")],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="A full checkpoint, for all that isn't averaged.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The checkpoint to write; an existing file is kept.")],
    last: Annotated[int | None, typer.Option(help="The mean of the latest N only (LAWA); default all (SWA).")] = None,
    decay: Annotated[
        float | None, typer.Option(help="Their exponential moving average (EMA) with this decay, not the mean.")
    ] = None,
) -> None:
    """Average snapshots: SWA, LAWA, or EMA.

    BatchNorm statistics are those of WEIGHTS; dimred eval shows the accuracy with new ones, and --save keeps them.

    Example: dimred average device0_stage_1/checkpoint_stage_1/checkpoint_pca resnet-70_625.ckpt average.ckpt
    """
    from dimred.evaluate.averages import average_snapshots, moving_average
    from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint
    from dimred.weights.matrix import WeightMatrix
    from dimred.weights.series import CheckpointSeries

    if out.exists():
        raise ConfigError(f"OUT is {str(out)!r}, which exists already; name another file")
    if decay is not None and not 0 <= decay < 1:
        raise ConfigError(f"--decay is {decay}; it must be at least 0 and below 1 (0.9 is usual)")
    series = CheckpointSeries.open(ckpt_dir)
    series = series if last is None else series.select(last=last)
    layout = WeightMatrix(series).layout
    arrays = read_checkpoint(weights)
    difference = layout.misfit({name: value.shape for name, value in arrays.items()})
    if difference:
        raise ConfigError(f"WEIGHTS is {str(weights)!r}, which is not of the snapshots' network: {difference}")
    mean = average_snapshots(series, layout) if decay is None else moving_average(series, layout, decay)
    write_checkpoint(out, arrays | layout.unflatten(mean))
    print(f"{out}: {'mean' if decay is None else f'moving average, decay {decay},'} of {len(series)} snapshots")
