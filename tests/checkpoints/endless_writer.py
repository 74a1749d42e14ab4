"""Appends snapshots for ever and prints each step: ``python endless_writer.py FOLDER``."""

import sys

import numpy as np

from dimred.checkpoints.series import CheckpointSeries

series = CheckpointSeries(sys.argv[1], keep=3)
step = series.entries[-1].step if series.entries else 0
while True:
    step += 1
    series.append({"w": np.full(20_000, step, np.float32)}, step=step, epoch=step)
    print(step, flush=True)
