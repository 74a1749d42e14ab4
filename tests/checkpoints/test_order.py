"""Checkpoints are ordered by their names only where these leave no doubt."""

import os
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.order import epochs_and_steps
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import ConfigError, DimredError


def steps(*names):
    return [step for _, step in epochs_and_steps({Path(name): [] for name in names})]


@pytest.mark.parametrize(
    ("names", "answer"),
    [
        (["model-500k.ckpt", "model-750k.ckpt", "model-1M.ckpt"], [500_000, 750_000, 1_000_000]),
        (["m-1.5B.ckpt", "m-500m.ckpt", "m-1T.ckpt"], [1_500_000_000, 500_000_000, 10**12]),
        (["a_5e4", "a_1e5"], [50_000, 100_000]),
        (["epoch=3-step=100.ckpt", "epoch=4-step=133.ckpt", "epoch=4-step=133k.ckpt"], [100, 133, 133_000]),
        (["epoch=4-step=133-v1", "epoch=3-step=100", "epoch=10-step=300-v2"], [133, 100, 300]),
        (["epoch_1_step_50", "epoch_2_step_50", "epoch_1_step_25"], [50, 100, 25]),  # counted in the epoch
        (["loss0.5-step=900", "loss0.25-step=1000"], [900, 1000]),
        (["ep2_acc93", "ep10_acc94", "ep9_acc91"], [2, 10, 9]),
        (["Epoch3Loss0.5", "Epoch12Loss0.1"], [3, 12]),
        (["ckpt-500-loss3", "ckpt-1000-loss2"], [500, 1000]),
        (["net-10_000", "net-9_000"], [10, 9]),
        (["net-0_0", "net-1_0", "net-2_0"], [0, 1, 2]),
        (["step=900", "step=1,000", "step=12,000,000"], [900, 1000, 12_000_000]),
        (["7b-iter_00500", "7b-iter_01000"], [500, 1000]),
        (["2024-05-01-10-00-05", "2024-05-01-10-00-07"], [5, 7]),
        (["20240501100005", "20240501090007"], [20240501100005, 20240501090007]),
        (["checkpoint-500/model.safetensors", "checkpoint-1000/model.safetensors"], [500, 1000]),
        (["step_500/unet/model.safetensors", "step_1k/unet/model.safetensors"], [500, 1000]),
        (["net_1-3_10.ckpt", "net_1-2_10.ckpt"], [30, 20]),
        (["net-9_000", "net-10_000", "net-9_500"], [4008, 4509, 4508]),  # each epoch begins at 0
        (["net-0_0", "net-1_625", "net-2_625"], [0, 625, 1250]),
        (["500-epoch1", "1000-epoch2"], [1, 2]),
        (["/a.ckpt"], [1]),
    ],
)
def test_the_number_that_tells_the_order_is_read(names, answer):
    assert steps(*names) == answer


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["epoch=3-step=100.ckpt", "epoch=3-step=100-v1.ckpt", "epoch=4-step=133.ckpt"], "of one epoch and step"),
        (["2_acc93", "10_acc91"], "2 numbers vary in the names"),
        (["2024-05-01-10-00-05", "2024-05-02-09-00-07"], "3 numbers vary"),
        (["step_900", "step_1_000"], "may go on after an underscore"),
        (["a-1-9", "a-2-8", "b-3-7"], "'b-3-7' is not named like the others"),
        (["w-0.5", "w-0.75"], "the names don't tell it"),  # a decimal is no step
        (["n-3fa9", "n-4bc1"], "the names don't tell it"),
        (["last", "last-v1"], "the names don't tell it"),
        (["first 2", "second 5"], "the names don't tell it"),
        (["epoch_1", "epoch_2", "resnet50"], "'resnet50' is not named like the others"),
        (["checkpoint-500", "checkpoint-1000", "llama-7b"], "'llama-7b' is not named like the others"),
        (["model_100", "model_200", "model_ema_150"], "'model_ema_150' is not named like the others"),
        (["ckpt-30m", "ckpt-1h", "ckpt-2h"], "'ckpt-30m' is not named like the others"),
        (["exp1a", "exp1b"], "the names don't tell it"),
        (["rank_0/net-5_100.ckpt", "rank_1/net-5_100.ckpt"], "that of a slice or layer"),
        (["consolidated.00", "consolidated.01"], "that of a slice or layer"),
        (["layer_01-model_00-states", "layer_02-model_00-states"], "that of a slice or layer"),
        (["run1_step_100", "run1_step_300", "run2_step_200"], "several runs: 'run1_', 'run2_'"),
        (["phase1-epoch9", "phase1-epoch10", "phase2-epoch1"], "several runs: 'phase1-', 'phase2-'"),
        (["20240501-step100", "20240502-step50"], "several runs"),
        (["a/net-1.ckpt", "b/net-1.ckpt", "b/net-2.ckpt"], "of one epoch and step"),
        (["a-1_5", "b-2_5"], "several runs: 'a', 'b'"),
        (["warm-step=100", "cold-step=200"], "several runs: 'cold-', 'warm-'"),
        (["a/ema_ckpt-500", "a/ckpt-1000"], "several runs: '', 'ema_'"),
        (["net-epoch=1-step=5", "net-epoch=2-step=10", "old-epoch=3-step=15"], "several runs: 'net-', 'old-'"),
        ([f"n{'1' * 19}", f"n{'2' * 19}"], "the names don't tell it"),
    ],
)
def test_doubt_is_refused_and_the_choices_are_named(names, words):
    with pytest.raises(DimredError, match=words) as error:
        steps(*names)
    assert "order='name' or order='mtime'" in str(error.value)


def test_equal_times_are_refused(tmp_path):
    for number, name in enumerate("bac"):
        write_checkpoint(tmp_path / f"{name}.ckpt", {"m.w": np.full(3, number, np.float32)})
        os.utime(tmp_path / f"{name}.ckpt", (number, number))
    in_time = CheckpointSeries.open(tmp_path, "mtime").paths
    assert [path.stem for path in in_time] == ["b", "a", "c"]
    os.utime(tmp_path / "c.ckpt", (1, 1))
    for call in (
        lambda: dimred.merge(tmp_path, tmp_path / "out.ckpt", order="mtime"),
        lambda: CheckpointSeries.open(tmp_path, "mtime"),
    ):
        with pytest.raises(ConfigError, match=r"a\.ckpt and .*c\.ckpt were written at the same time; use order='step'"):
            call()
    assert [path.stem for path in CheckpointSeries.open(tmp_path, "name").paths] == ["a", "b", "c"]
