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


def points(folder: Path) -> CheckpointSelection:
    return CheckpointSelection(folder, "net", 7, ALONE)


def test_the_lowest_loss_is_kept_of_equal_ones_the_earliest(tmp_path: Path) -> None:
    network, made = nn.Dense(2, 3), points(tmp_path)
    for value, (point, loss) in enumerate((("start", 3.0), ("1", 1.0), ("2", 1.0), ("final", None))):
        network.weight.set_data(Tensor(np.full((3, 2), value, np.float32)))
        made.save(point, list(network.get_parameters()), loss)
    names = ["net-1_7.ckpt", "net-2_7.ckpt", "net-final.ckpt", "net-start.ckpt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert made.put_best(network) == {"kept": "1", "val_loss": {"start": 3.0, "1": 1.0, "2": 1.0}}
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
    points(tmp_path)
    assert list(tmp_path.iterdir()) == []
