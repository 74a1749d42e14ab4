"""The program that ``dimred bench`` and ``dimred doctor`` run on each rank.

python -m dimred.pipelines.machine bench DATA --config pipelines/configs/digits.yaml --out FOLDER
"""

import json
import math
import os
import time
from pathlib import Path
from typing import Annotated, Any

import mindspore as ms
import numpy as np
import typer
from mindspore import Tensor, nn

from dimred.config import StageOneConfig, load_config
from dimred.console import Data, DeviceTarget, Overrides, run_program
from dimred.errors import DimredError
from dimred.io.system import peak_memory_bytes
from dimred.launch.channel import tell_refusal
from dimred.runs.device import set_precision, set_up
from dimred.runs.loop import EpochLoop, Observer, Progress
from dimred.runs.run import open_run
from dimred.runs.steps import build_train_step
from dimred.runs.task import build_task
from dimred.stages.checks import check_stage_1
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import to_arrays

_STEPS, _WARM_UP = 50, 10


class _Timer(Observer):
    """An observer of stage 1's steps that reads their losses, as a run does, and notes the time of each read."""

    def __init__(self) -> None:
        self.n_launched = 0
        self.done_at: dict[int, float] = {}

    def count(self) -> None:
        """Count a step that was launched."""
        self.n_launched += 1

    def after_step(self, result: Any, progress: Progress) -> None:
        """Read the loss, and note the time and the steps launched by then."""
        float(result.loss)
        self.done_at[self.n_launched] = time.perf_counter()

    def save(self, progress: Progress) -> None:
        """Save nothing."""

    def after_epoch(self, progress: Progress) -> None:
        """Measure nothing."""


def bench(
    data: Data,
    config: Annotated[Path, typer.Option(help="YAML file, see pipelines/configs.")],
    out: Annotated[Path, typer.Option(help="New folder for logs; nothing in it is worth keeping.")],
    device_target: DeviceTarget = "CPU",
    overrides: Overrides = None,
) -> None:
    """Compile the step, make 50 more, time them from the tenth on, and print the result as one JSON object."""
    settings = load_config(StageOneConfig, config, overrides or [])
    ranks = set_up(settings.seed, device_target, settings.all_reduce_split, settings.deterministic)
    set_precision(settings)
    task = build_task(settings, data, ranks, is_checked=False)
    check_stage_1(task, out)
    step = build_train_step(settings, task.network, task.steps_per_epoch, ranks)
    with open_run(out, task) as run:
        runs, start = [], time.perf_counter()
        for n_steps in (1, _STEPS):
            part, timer = task.training_batches.shortened(n_steps), _Timer()
            loop = EpochLoop(
                "stage 1", step, part, seed=settings.seed, n_epochs=math.ceil(n_steps / part.steps_per_epoch),
                save_every_steps=settings.save_every_steps, ranks=ranks, signals=run.signals,
                read_every_steps=min(settings.read_every_steps, _STEPS // 2), after_launch=timer.count,
            )  # fmt: skip
            loop.run(Progress(), timer)
            runs.append(timer.done_at)
    first_result, done_at = runs[0][1], runs[1]
    first, last = min(n for n in done_at if n >= _WARM_UP), max(done_at)
    seconds = done_at[last] - done_at[first]
    per_epoch = part.steps_per_epoch  # whose last step may have fewer rows
    n_rows = sum(part.rows_of_step(step_before % per_epoch + 1) for step_before in range(first, last))
    peak = peak_memory_bytes()  # of the process
    if device_target == "Ascend":
        peak = int(ms.runtime.max_memory_allocated())  # of the tensors on the device
    precision, size = settings.precision, f", {settings.data.image_size} px" if settings.data.dataset is None else ""
    half = "" if precision.level == "O0" else f" {precision.dtype}"
    row = {
        "network": settings.model.name + size,
        "MindSpore": ms.__version__,
        "device": device_target if device_target == "Ascend" else f"CPU, {os.cpu_count()} cores",
        "ranks": ranks.group_size,
        "batch": part.rows_of_step(1),
        "precision": precision.level + half,
        "jit level": precision.jit_level or "default",
        "compile, s": f"{first_result - start:.1f}",
        "ms a step": f"{1000 * seconds / (last - first):.1f}",
        "images a second": f"{n_rows * ranks.group_size / seconds:,.0f}",
        "peak memory of rank 0, MB": f"{peak / 1e6:,.0f}",
    }
    print(json.dumps(row))


def doctor(out: Annotated[Path, typer.Option(help="Folder of the rank.")], device_target: DeviceTarget = "CPU") -> None:
    """Make one training step, and check that all ranks have the same weights after it."""
    ranks = set_up(1, device_target)
    network = nn.Dense(4, 3)
    ranks.broadcast(network.trainable_params())
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    step = TrainStep(nn.WithLossCell(network, nn.MSELoss()), optimizer, ranks=ranks)
    inputs = Tensor(np.full((2, 4), 1.0 + ranks.rank, np.float32))  # different on each rank
    before, start = to_arrays(network.trainable_params()), time.perf_counter()
    loss = float(step(inputs, Tensor(np.ones((2, 3), np.float32))).loss.asnumpy())
    seconds, after = time.perf_counter() - start, to_arrays(network.trainable_params())
    if not np.isfinite(loss) or all(np.array_equal(before[name], after[name]) for name in after):
        raise DimredError(f"a training step had the loss {loss}, or changed no weight; reinstall mindspore")
    ranks.check_same("weights after a step", b"".join(array.tobytes() for array in after.values()))
    print(f"{seconds:.1f} s with compiling")


if __name__ == "__main__":
    run_program(bench, doctor, tell_refusal=tell_refusal)
