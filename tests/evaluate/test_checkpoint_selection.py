"""The points of a search: what is kept, and what a killed run leaves."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from dimred.distributed.ranks import ALONE
from dimred.evaluate.checkpoint_selection import CheckpointSelection
from dimred.files.atomic import open_atomic


def points(folder: Path, network: nn.Cell, losses: list[float]) -> CheckpointSelection:
    return CheckpointSelection(
        folder, "net", lambda: list(network.get_parameters()), network, ALONE, lambda: losses.pop(0)
    )


def test_the_lowest_loss_is_kept_of_equal_ones_the_earliest(tmp_path: Path) -> None:
    network = nn.Dense(2, 3)
    made = points(tmp_path, network, [3.0, 1.0, 1.0])
    for value, point in enumerate(("start", "1", "2")):
        network.weight.set_data(Tensor(np.full((3, 2), value, np.float32)))
        made.save(point, f"{point}_7" if point != "start" else "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net-1_7.ckpt", "net-2_7.ckpt", "net-start.ckpt"]
    told = made.keep_best(lambda point: f"{point}_7" if point != "start" else point)
    assert told == {"kept": "1", "val_loss": {"start": 3.0, "1": 1.0, "2": 1.0}}
    np.testing.assert_array_equal(network.weight.asnumpy(), np.full((3, 2), 1, np.float32))


def _die_while_writing(target: Path) -> None:
    with open_atomic(target) as file:
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def test_half_a_checkpoint_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    killed = multiprocessing.get_context("spawn").Process(target=_die_while_writing, args=(tmp_path / "net-1_7.ckpt",))
    killed.start()
    killed.join()
    assert killed.exitcode == -9
    assert len(list(tmp_path.glob(".writing-*"))) == 1
    points(tmp_path, nn.Dense(2, 3), [])
    assert list(tmp_path.iterdir()) == []
