"""The program that ``dimred bench`` and ``dimred doctor`` run on each rank.

python -m dimred.pipelines.machine bench DATA --config pipelines/configs/digits.yaml --out FOLDER
"""

import json
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from dimred.config import StageOneConfig, load_config
from dimred.console import Data, DeviceTarget, Overrides, run_program
from dimred.errors import DimredError
from dimred.io.system import peak_memory_bytes
from dimred.launch.channel import tell_refusal
from dimred.launch.devices import DEVICES, make_ready


def bench(
    data: Data,
    config_file: Annotated[Path, typer.Option("--config", help="YAML file, see pipelines/configs.")],
    out: Annotated[Path, typer.Option(help="New folder for logs; nothing in it is worth keeping.")],
    device_target: DeviceTarget = "CPU",
    overrides: Overrides = None,
) -> None:
    """Compile the step, make 50 more, time them from the tenth on, and print the result as one JSON object."""
    make_ready(device_target)  # before MindSpore is imported
    import mindspore as ms

    from dimred.runs.device import set_precision, set_up
    from dimred.runs.run import open_run
    from dimred.runs.splits import dataset_of
    from dimred.runs.steps import build_train_step
    from dimred.runs.task import build_task
    from dimred.runs.timing import time_steps
    from dimred.stages.checks import check_stage_1

    config = load_config(StageOneConfig, config_file, overrides or [])
    ranks = set_up(config.seed, device_target, config.all_reduce_split, config.deterministic, config.mode)
    set_precision(config)
    task = build_task(config, data, ranks, is_checked=False)
    check_stage_1(task, out)
    step = build_train_step(config, task.network, task.steps_per_epoch, ranks)
    with open_run(out, task) as run:
        times = time_steps(run, task, step)
    peak = peak_memory_bytes()  # for the process
    if device_target != "CPU":
        peak = int(ms.runtime.max_memory_allocated())  # for tensors on the device
    precision = config.precision
    size = dataset_of(config.data).describe(config.data.image_size)
    half = "" if precision.level == "O0" else f" {precision.dtype}"
    row = {
        "network": ", ".join(part for part in (config.model.name, size) if part),
        "MindSpore": ms.__version__,
        "device": DEVICES[device_target].describe(),
        "ranks": ranks.group_size,
        "batch": task.training_batches.rows_of_step(1),
        "precision": precision.level + half,
        "mode": config.mode,
        "jit level": precision.jit_level or "default",
        "compile, s": f"{times.first:.1f}",
        "ms a step": f"{1000 * times.seconds / times.n_steps:.1f}",
        "images a second": f"{times.n_rows * ranks.group_size / times.seconds:,.0f}",
        "peak memory of rank 0, MB": f"{peak / 1e6:,.0f}",
    }
    print(json.dumps(row))


def doctor(out: Annotated[Path, typer.Option(help="Folder of the rank.")], device_target: DeviceTarget = "CPU") -> None:
    """Make one training step, and check that all ranks have the same weights after it."""
    make_ready(device_target)  # before MindSpore is imported
    from mindspore import Tensor, nn

    from dimred.runs.device import set_up
    from dimred.train_step.step import TrainStep
    from dimred.vectors.parameters import to_arrays

    ranks = set_up(1, device_target)
    network = nn.Dense(4, 3)
    ranks.broadcast(network.trainable_params())
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    step = TrainStep(nn.WithLossCell(network, nn.MSELoss()), optimizer, ranks=ranks)
    inputs = Tensor(np.full((2, 4), 1.0 + ranks.rank, np.float32))  # different on each rank
    before = to_arrays(network.trainable_params())
    start = time.perf_counter()
    loss = float(step(inputs, Tensor(np.ones((2, 3), np.float32))).loss.asnumpy())
    seconds = time.perf_counter() - start
    after = to_arrays(network.trainable_params())
    if not np.isfinite(loss) or all(np.array_equal(before[name], after[name]) for name in after):
        raise DimredError(f"a training step had the loss {loss}, or changed no weight; reinstall mindspore")
    ranks.check_same("weights after a step", b"".join(array.tobytes() for array in after.values()))
    print(f"{seconds:.1f} s with compiling")


def prove(out: Annotated[Path, typer.Option(help="Folder of the rank.")], device_target: DeviceTarget = "CPU") -> None:
    """Compare kernels and steps with NumPy, or several ranks with one, and print the differences as one JSON object."""
    make_ready(device_target)  # before MindSpore is imported
    from dimred.proof.checks import prove
    from dimred.runs.device import set_up

    print(prove(set_up(1, device_target)))


if __name__ == "__main__":
    run_program(bench, doctor, prove, tell_refusal=tell_refusal)
