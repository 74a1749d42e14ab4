"""Stage 1 begins with another network's weights; what does not fit is listed, and a resume notices another file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import nn

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.errors import CheckpointError, ConfigError
from dimred.pipelines.stage_1 import stage_1
from dimred.runs.first_weights import read_first_weights
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale
from dimred.train_step.optimizers import make_optimizer
from dimred.train_step.schedule_free import ScheduleFree
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import to_arrays
from tests.helpers.tiny_task import N_FEATURES, TASK, network

STAGE_1: dict[str, Any] = {"epochs": 1, "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0}}
BODY = ("0.weight", "0.bias", "1.moving_mean", "1.moving_variance", "1.gamma", "1.beta")


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Write a full checkpoint of a network with seven classes, with all that a training keeps beside the weights."""
    other = network(7)
    for number, parameter in enumerate(other.get_parameters()):
        parameter.set_data(parameter + 1.5 + number)
    step = TrainStep(
        nn.WithLossCell(other, nn.CrossEntropyLoss()),
        make_optimizer("adamw", other.trainable_params(), 0.1),
        parts=[EMA(other), DynamicLossScale()],
    )
    write_checkpoint(tmp_path / "net-3_4.ckpt", step.state(), {"epoch": 3})
    return tmp_path / "net-3_4.ckpt"


def test_what_fits_by_name_and_shape_is_taken_and_the_rest_stays(trained: Path) -> None:
    fresh = network(3)
    before, in_file = to_arrays(fresh.get_parameters()), read_checkpoint(trained)
    found = read_first_weights(trained, ["3.*"], fresh)
    assert sorted(found.arrays) == sorted(BODY)
    found.put(fresh)
    for name, array in to_arrays(fresh.get_parameters()).items():
        np.testing.assert_array_equal(array, in_file[name] if name in BODY else before[name])


def test_what_does_not_fit_is_listed_in_both_directions(trained: Path) -> None:
    larger = nn.SequentialCell(nn.Dense(N_FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dense(6, 3), nn.Dense(3, 3))
    with pytest.raises(ConfigError) as refused:
        read_first_weights(trained, ["head.*"], larger)
    first, *listed, last = str(refused.value).splitlines()
    assert first == f"model.weights {str(trained)!r} does not fit the network:"
    assert listed == [
        "  model.new has 'head.*', which matches nothing",
        "  3.weight is float32 (7, 6) in the file, but Float32 (3, 6) in the network",
        "  3.bias is float32 (7,) in the file, but Float32 (3,) in the network",
        "  4.weight (3, 3) is in the network, but not in the file",
        "  4.bias (3,) is in the network, but not in the file",
    ]
    assert last.startswith("Name what stays new, or is left out, with patterns in model.new, such as --set 'model.new=")
    smaller = nn.SequentialCell(nn.Dense(N_FEATURES, 6), nn.BatchNorm1d(6))
    with pytest.raises(ConfigError, match=r"  3\.weight \(7, 6\) is in the file, but not in the network\n  3\.bias"):
        read_first_weights(trained, [], smaller)
    assert len(read_first_weights(trained, ["3.*", "4.*"], larger).arrays) == len(BODY)
    assert len(read_first_weights(trained, ["3.*"], smaller).arrays) == len(BODY)


def test_whole_numbers_are_no_weights_and_a_file_that_gives_nothing_is_refused(tmp_path: Path) -> None:
    fresh, path = network(3), tmp_path / "quantised.safetensors"
    write_checkpoint(path, {name: array.astype(np.int8) for name, array in to_arrays(fresh.get_parameters()).items()})
    with pytest.raises(ConfigError, match=r"0\.weight is int8 \(6, 4\) in the file, but Float32 \(6, 4\) in the net"):
        read_first_weights(path, [], fresh)
    with pytest.raises(ConfigError, match=r"gives the network nothing, because model\.new names all of it"):
        read_first_weights(path, ["*"], fresh)
    with pytest.raises(CheckpointError, match="nowhere"):
        read_first_weights(tmp_path / "nowhere.ckpt", [], fresh)


def test_the_point_of_schedule_free_gradients_is_no_network(tmp_path: Path) -> None:
    fresh = network(3)
    step = TrainStep(nn.WithLossCell(fresh, nn.CrossEntropyLoss()), ScheduleFree(fresh.trainable_params(), 0.1))
    write_checkpoint(tmp_path / "net-3_4.ckpt", step.state(), {"epoch": 3})
    with pytest.raises(ConfigError, match=r"the point at which schedule-free training takes its gradients, not"):
        read_first_weights(tmp_path / "net-3_4.ckpt", [], fresh)


def test_a_run_begins_there_and_a_resume_notices_another_file(trained: Path, tmp_path: Path) -> None:
    """A rate of 1e-30 leaves the weights as they were."""
    config, out = tmp_path / "one.yaml", tmp_path / "run"
    model = TASK["model"] | {"weights": str(trained), "new": ["3.*"]}
    still = {"schedule": STAGE_1["schedule"] | {"peak": 1e-30}}
    config.write_text(json.dumps(TASK | {"model": model, "stage_1": STAGE_1 | still}))
    stage_1(tmp_path, config, out)
    arrays, in_file = read_checkpoint(out / "checkpoint_stage_1" / "network-1_4.ckpt"), read_checkpoint(trained)
    for name in ("0.weight", "0.bias", "1.gamma", "1.beta"):
        np.testing.assert_array_equal(arrays[name], in_file[name])
    pins = json.loads((out / "pins.json").read_text())["pins"]
    assert pins["model.weights"][1] == str(trained)
    stage_1(tmp_path, config, out, resume=True, overrides=["epochs=2"])
    write_checkpoint(trained, in_file | {"0.bias": in_file["0.bias"] + 1})
    with pytest.raises(ConfigError, match=r"have changed:\n  model\.weights: \w{64} \(.*\) -> \w{64} \(.*\)\n--resume"):
        stage_1(tmp_path, config, out, resume=True, overrides=["epochs=3"])
    with pytest.raises(ConfigError, match=r'model\.new: \["3\.\*"\] -> \["3\.\*", "0\.\*"\]'):
        stage_1(tmp_path, config, out, resume=True, overrides=["model.new=['3.*', '0.*']"])
