"""What ``dimred doctor`` runs on each rank: one compiled training step, whose gradient is the mean over the ranks."""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from mindspore import Tensor, nn

from dimred.console import DeviceTarget, run_program
from dimred.errors import DimredError
from dimred.launch.channel import tell_refusal
from dimred.train_step.step import TrainStep
from dimred.trainer.device import set_up
from dimred.vectors.parameters import to_arrays


def doctor(out: Annotated[Path, typer.Option(help="Folder of the rank.")], device_target: DeviceTarget = "CPU") -> None:
    """Make one training step, and check that all ranks have the same weights after it."""
    ranks = set_up(1, device_target)
    network = nn.Dense(4, 3)
    ranks.broadcast(network.trainable_params())
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    step = TrainStep(nn.WithLossCell(network, nn.MSELoss()), optimizer, reduce=ranks.mean())
    inputs = Tensor(np.full((2, 4), 1.0 + ranks.rank, np.float32))  # other ones on each rank
    before, started = to_arrays(network.trainable_params()), time.perf_counter()
    loss = float(step(inputs, Tensor(np.ones((2, 3), np.float32))).loss.asnumpy())
    seconds, after = time.perf_counter() - started, to_arrays(network.trainable_params())
    if not np.isfinite(loss) or all(np.array_equal(before[name], after[name]) for name in after):
        raise DimredError(f"a training step had the loss {loss} and changed no weight; reinstall mindspore")
    ranks.check_same("weights after a step", b"".join(array.tobytes() for array in after.values()))
    print(f"{seconds:.1f} s with compiling")


if __name__ == "__main__":
    run_program(doctor, tell_refusal)
