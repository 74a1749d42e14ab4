"""The points of a stage 2: which one is kept, and what a killed run leaves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.averaging.choice import Choice, Measurement
from dimred.checkpoints.layout import WeightLayout
from dimred.distributed.ranks import ALONE
from dimred.stages.candidates import Candidates


def points(folder: Path) -> Candidates:
    return Candidates(folder, "net", 7, ALONE, Choice())


@pytest.fixture
def network() -> nn.Cell:
    return nn.Dense(2, 3, has_bias=False)


def make(made: Candidates, network: nn.Cell, values: dict[str | int, float]) -> None:
    """Save points whose weights are all one value."""
    for point, value in values.items():
        network.weight.set_data(Tensor(np.full((3, 2), value, np.float32)))
        made.save(point, list(network.get_parameters()))
        if point != "final":
            made.measure(point, 1.0, Distances(network))


class Distances:
    """Measure a network as ``Evaluator`` does; a sample's loss is the distance of a weight from 2."""

    def __init__(self, network: nn.Cell):
        self.network, self.layout = network, WeightLayout.from_network(network)

    def put(self, weights: np.ndarray) -> None:
        self.network.weight.set_data(Tensor(weights.reshape(3, 2)))

    def measure_val(self) -> Measurement:
        return Measurement(np.abs(self.network.weight.asnumpy().ravel() - 2), 0.5)

    def measure_val_of(self, weights: np.ndarray) -> Measurement:
        self.put(weights)
        return self.measure_val()


def put_chosen(made: Candidates, network: nn.Cell, n_epochs: int) -> dict[str, Any]:
    return made.put_chosen(Distances(network), range(1, n_epochs + 1))


@pytest.mark.parametrize(
    ("values", "kept", "weight"),
    [
        ({"start": 2.0, 1: 3.0, 2: 4.0}, "start", 2.0),
        ({"start": 5.0, 1: 4.0, 2: 2.5}, "2", 2.5),
        ({"start": 5.0, 1: 1.0, 2: 3.0}, "mean of epochs 1 to 2", 2.0),
        ({"start": 5.0, 1: 3.0}, "1", 3.0),
    ],
)
def test_start_epochs_and_their_means_are_candidates(
    values: dict[str | int, float], kept: str, weight: float, tmp_path: Path, network: nn.Cell
) -> None:
    made = points(tmp_path)
    make(made, network, values)
    assert put_chosen(made, network, len(values) - 1)["kept"] == kept
    np.testing.assert_array_equal(network.weight.asnumpy(), np.full((3, 2), weight, np.float32))


def test_a_mean_covers_the_epochs_in_its_name_those_too_that_could_not_be_measured(
    tmp_path: Path, network: nn.Cell
) -> None:
    made, resumed = points(tmp_path), points(tmp_path)
    make(made, network, {"start": 9.0, 1: 9.0, 2: np.inf, 3: 1.0, 4: 3.0})
    resumed.restore(made.state_arrays(), made.state_values())
    found = put_chosen(resumed, network, 4)
    assert found["kept"] == "3"
    assert found["kept_candidates"][-1]["name"] == "mean of epochs 1 to 4"
    assert not np.isfinite(found["kept_candidates"][-1]["loss"])
    np.testing.assert_array_equal(network.weight.asnumpy(), np.ones((3, 2), np.float32))
