"""Where a search begins, as a user's own program asks for it."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

import dimred
from dimred.data.own_dataset import OwnDataset
from dimred.distributed.ranks import ALONE
from dimred.errors import ConfigError
from dimred.evaluate.evaluator import OnSplits
from dimred.evaluate.initial_weights import InitialWeights
from tests.helpers.networks import weight_vector


@pytest.fixture
def network() -> nn.Cell:
    return nn.Dense(2, 3)


@pytest.fixture
def series(network: nn.Cell, tmp_path: Path) -> dimred.CheckpointSeries:
    """Ten snapshots, all ones and a little noise."""
    rng, series = np.random.default_rng(0), dimred.CheckpointSeries(tmp_path / "snapshots")
    for step in range(1, 11):
        noisy = {p.name: (1 + 0.1 * rng.normal(size=p.shape)).astype(np.float32) for p in network.trainable_params()}
        series.append(noisy, step=step, epoch=step)
    return series


def test_the_average_that_the_losses_choose_is_put(network: nn.Cell, series: dimred.CheckpointSeries) -> None:
    asked = []

    def losses() -> np.ndarray:
        return np.square(weight_vector(network) - 1.0)

    found = dimred.choose_start(network, series, losses, lambda: asked.append(1))
    assert found.candidate.width > 5
    assert len(asked) == len(found.selection.candidates) + 1
    np.testing.assert_array_equal(weight_vector(network), found.weights)
    assert repr(found).startswith(f"{found.candidate.name}: loss 0.0")


@pytest.mark.parametrize("losses", [0.5, np.ones((3, 2)), np.ones(1)])
def test_losses_that_are_not_one_for_each_sample(losses, network: nn.Cell, series: dimred.CheckpointSeries) -> None:
    with pytest.raises(ConfigError, match="it must give one loss for each held-out sample"):
        dimred.choose_start(network, series, lambda: losses)


def test_a_single_held_out_sample_is_enough_for_a_program(network: nn.Cell, series: dimred.CheckpointSeries) -> None:
    """A long text may be one; its loss is the mean over its bytes."""
    sample = (np.ones(2, np.float32), np.int32(1))
    val = OwnDataset(lambda *_: [sample], Path(), "val", batch_size=4, workers=1)
    on = OnSplits(network, {"val": val, "train": val}, seed=1, n_batches=1)
    chosen = InitialWeights(network, ALONE, on).put("best", None, series)
    assert len(chosen["start_candidates"]) > 10
