"""Checkpoints are ordered by whole numbers in their names that grow together; anything else needs another order."""

import os
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.errors import ConfigError, DimredError
from dimred.merging.order import steps_of


def steps(*names):
    return steps_of({Path(name): [] for name in names})


@pytest.mark.parametrize(
    ("names", "answer"),
    [
        (["net-9", "net-10"], [9, 10]),
        (["epoch=3-step=100.ckpt", "epoch=4-step=133.ckpt", "epoch=4-step=150.ckpt"], [100, 133, 150]),
        (["epoch=2-step=30-val_loss=0.5", "epoch=10-step=100-val_loss=0.1"], [30, 100]),
        (["weights.01-0.52", "weights.02-0.45"], [1, 2]),
        (["snapshot.ep.9.safetensors", "snapshot.ep.10.safetensors"], [9, 10]),
        (["7b-iter_00500", "7b-iter_01000"], [500, 1000]),
        (["20240501100005", "20240501090007"], [20240501100005, 20240501090007]),
        (["checkpoint-500/model.safetensors", "checkpoint-1000/model.safetensors"], [500, 1000]),
        (["step_500/unet/model.safetensors", "step_600/unet/model.safetensors"], [500, 600]),
        (["net_1-3_10.ckpt", "net_1-2_10.ckpt"], [30, 20]),  # counted in the epoch, as MindSpore does
        (["resnet-1_625", "resnet-2_1250"], [625, 1250]),
        (["net-0_50", "net-0_100", "net-1_50", "net-1_100"], [50, 100, 150, 200]),
        (["rank_0/net-1.ckpt", "rank_0/net-2.ckpt"], [1, 2]),  # one slice of two checkpoints
        (["/a.ckpt"], [1]),
    ],
)
def test_the_number_that_tells_the_order_is_read(names, answer):
    assert steps(*names) == answer


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["epoch=3-step=100", "epoch=4-step=133-v1"], "'epoch=4-step=133-v1' is not named like"),
        (["model-500k", "model-1M"], "'model-1M' is not named like 'model-500k'"),
        (["ep2_acc93", "ep10_acc91"], "falls where another grows"),
        (["epoch1_step50", "epoch2_step25"], "falls where another grows"),
        (["a_5e4", "a_1e5"], "falls where another grows"),
        (["w-0.5", "w-0.75"], "no whole number grows"),  # a decimal is no step
        (["first", "second"], "'second' is not named like"),
        (["rank_0/net.ckpt", "rank_1/net.ckpt"], "slices or layers"),
        (["consolidated.00", "consolidated.01"], "slices or layers"),
        (["tp0.ckpt", "tp1.ckpt"], "slices or layers"),
        (["9/tp0.ckpt", "10/tp1.ckpt"], "slices or layers"),
        (["w-0.1", "w-0.2", "w-0.3"], r"\(w-0\.1, w-0\.2, w-0\.3\); "),
        (["w-0.1", "w-0.2", "w-0.3", "w-0.4"], r"\(w-0\.1, w-0\.2, w-0\.3, \.\.\.\); "),
        (["a/net-1.ckpt", "b/net-1.ckpt", "b/net-2.ckpt"], "'b/net-1' is not named like 'a/net-1'"),
    ],
)
def test_doubt_is_refused_and_the_choices_are_named(names, words):
    with pytest.raises(ConfigError, match=words) as error:
        steps(*names)
    assert "order='name' or order='mtime'" in str(error.value)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a-1_5", "b-2_5"], "several runs: 'a', 'b'"),
        (["net-9_000", "net-9_500", "net-10_000"], "'net-9_500' and 'net-10_000' don't say which is older"),
    ],
)
def test_names_like_mindspores_that_are_of_no_one_run_are_refused(names, words):
    with pytest.raises(DimredError, match=words):
        steps(*names)


def test_by_name_numbers_count_as_numbers():
    names = ["run-10_b", "run-9_b", "run-10_a", "other"]
    assert steps_of({Path(name): [] for name in names}, "name") == [4, 2, 3, 1]


def test_the_time_of_a_checkpoint_is_that_of_its_newest_file(tmp_path):
    times = {"a": (1, 10), "b": (2, 3)}
    files = {tmp_path / name: [tmp_path / f"{name}{number}" for number in range(2)] for name in times}
    for folder, parts in files.items():
        for part, time in zip(parts, times[folder.name], strict=True):
            part.touch()
            os.utime(part, (time, time))
    assert steps_of(files, "mtime") == [2, 1]


def test_equal_times_are_refused(tmp_path):
    for number, name in enumerate("bac"):
        write_checkpoint(tmp_path / f"{name}.ckpt", {"m.w": np.full(3, number, np.float32)})
        os.utime(tmp_path / f"{name}.ckpt", (number, number))
    record = dimred.merge(tmp_path, tmp_path / "out.ckpt", order="mtime")
    assert [Path(one["path"]).stem for one in record["checkpoints"]] == ["b", "a", "c"]
    os.utime(tmp_path / "c.ckpt", (1, 1))
    with pytest.raises(ConfigError, match=r"a\.ckpt and .*c\.ckpt were written at the same time; use order='step'"):
        dimred.merge(tmp_path, tmp_path / "other.ckpt", order="mtime")
