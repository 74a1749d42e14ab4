"""An argument of the wrong kind is refused by its own name where it comes in, not by a traceback from below."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import nn

import dimred
from dimred.errors import ConfigError, SeriesError
from tests.helpers.networks import TanhMLP, basis_for

WHERE = ("data", ["run"])


def series() -> dimred.CheckpointSeries:
    """Return a series of two snapshots in the current folder."""
    snapshots = dimred.CheckpointSeries.resume("run")
    for step in range(len(snapshots), 2):
        snapshots.append({"w": np.full(3, step, np.float32)}, step=step, epoch=step)
    return snapshots


def search(**options: Any) -> object:
    network = TanhMLP()
    return dimred.SubspaceTrainStep(network, basis_for(network, 2), **options)


def train(**options: Any) -> object:
    network = TanhMLP()
    return dimred.TrainStep(network, nn.SGD(network.trainable_params()), **options)


def merge(metric: Any) -> object:
    series()
    return dimred.merge("run", "out.safetensors", metric=metric, minimize=True)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dimred.compare(3, ["run"]), "data is 3; it must be the path of a folder"),
        (lambda: dimred.compare("data", 3), "runs is 3; it must be a list of folders of finished stage 1 runs"),
        (lambda: dimred.compare("data", [3]), "runs has 3; it must be a list of folders of finished stage 1 runs"),
        (lambda: dimred.compare(*WHERE, 3), "config is 3; it must be a YAML file, or the name of a recipe"),
        (lambda: dimred.compare(*WHERE, out=3), "out is 3; it must be the path of a folder"),
        (lambda: dimred.compare(*WHERE, at=2), r"at is 2; it must be a list of epochs, such as \[20, 30\]"),
        (lambda: dimred.compare(*WHERE, at=["2"]), r"at has '2'; it must be a list of epochs"),
        (lambda: dimred.compare(*WHERE, methods=3), "methods is 3; it must be a list of names"),
        (lambda: dimred.compare(*WHERE, methods="last"), "methods is 'last'; it must be a list of names"),
        (lambda: dimred.compare(*WHERE, overrides="a=3"), "overrides is 'a=3'; it must be a list of texts"),
        (lambda: dimred.compare(*WHERE, device_target="TPU"), "device_target is 'TPU'; allowed: Ascend, GPU, CPU"),
        (lambda: dimred.reestimate_batch_norm(nn.ReLU(), 3), "batches is 3; it must be a data set or a list"),
        (lambda: dimred.reestimate_batch_norm(nn.ReLU(), [], ranks=3), "ranks is 3; it must be the ranks of a job"),
        (lambda: merge(dict), "metric is <class 'dict'>, which can't be used: it must be a function of a candidate"),
        (lambda: merge(max), "metric is <built-in function max>, which can't be used: it must be a function"),
        (lambda: merge(lambda: 0.0), "metric is <function .*, which can't be used: it must be a function"),
        (lambda: search(ranks=3), "ranks is 3; it must be the ranks of a job"),
        (lambda: search(rule="sgd", learning_rate=dict), "learning_rate is a function that can't be used: for 0, "),
        (lambda: search(rule="sgd", learning_rate=lambda: 0.1), "learning_rate is a function .* it raises TypeError"),
        (lambda: search(rule="sgd", learning_rate=lambda n: None), r"learning_rate\(0\) is None; it must be a number"),
        (lambda: search(rule="sgd", learning_rate=lambda n: np.nan), r"learning_rate\(0\) is nan; it must be"),
        (lambda: train(ranks=3), "ranks is 3; it must be the ranks of a job"),
        (lambda: dimred.SnapshotCallback("run", keep=0), "keep is 0; it must be a whole number of at least 1"),
        (lambda: dimred.SnapshotCallback("run", prefix="a/b"), "prefix is 'a/b'; it begins the file names"),
        (lambda: dimred.SnapshotCallback("run", format="h5"), "format is 'h5'; allowed: ckpt, safetensors"),
        (lambda: series().select(until_epoch="1"), "until_epoch is '1'; it must be a whole number of at least 0"),
        (lambda: dimred.fit_basis(series(), 1).check(3), "layout is 3; it must be a dimred.WeightLayout"),
    ],
)
def test_wrong_arguments(call: Callable[[], object], words: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(ConfigError, match=f"^{words}"):
            call()
        assert {path.name for path in tmp_path.iterdir()} <= {"run"}  # nothing was begun


def test_a_rate_is_checked_in_each_step_of_a_search() -> None:
    step = search(rule="sgd", learning_rate=lambda n: [0.1, -0.1][n])
    rows = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    step(*rows)
    with pytest.raises(ConfigError, match=r"^learning_rate\(1\) is -0.1; it must be a number of at least 0"):
        step(*rows)


def test_no_snapshot_before_step_0_is_advised(tmp_path: Path) -> None:
    snapshots = dimred.CheckpointSeries.create(tmp_path)
    for step, advice in [(1, r"call rewind\(0\) first; for another run, use another"), (0, "Use another")]:
        snapshots.rewind(0)
        snapshots.append({"w": np.zeros(3, np.float32)}, step=step + 1, epoch=1)
        with pytest.raises(SeriesError, match=rf"^step is {step}, but .* up to step {step + 1}\. .*{advice} folder\.$"):
            snapshots.append({"w": np.ones(3, np.float32)}, step=step, epoch=2)
