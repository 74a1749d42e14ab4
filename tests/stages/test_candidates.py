"""The points of a stage 2: which one is kept, and what a killed run leaves."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.averaging.choice import Choice
from dimred.data.own_dataset import OwnDataset
from dimred.distributed.ranks import ALONE
from dimred.evaluation.evaluator import Evaluator
from dimred.evaluation.scores import Scores
from dimred.stages.candidates import Candidates


def points(folder: Path) -> Candidates:
    return Candidates(folder, "net", 7, ALONE, Choice())


@pytest.fixture
def network() -> nn.Cell:
    return nn.Dense(2, 3, has_bias=False)


def samples(data: Path, split: str, seed: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Make inputs for which the outputs of ``network`` are its weights."""
    return [(np.eye(2, dtype=np.float32)[number % 2], np.full(3, 2.0, np.float32)) for number in range(6)]


def distance(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the distances of the weights from 2."""
    return (outputs - labels).abs()


@pytest.fixture
def evaluator(network: nn.Cell, tmp_path: Path) -> Evaluator:
    val = OwnDataset(samples, tmp_path, "val", batch_size=6)
    return Evaluator(network, {"val": val}, Scores(distance, (distance,)), seed=1, n_batches=0)


def save_and_measure(candidates: Candidates, evaluator: Evaluator, values: dict[str | int, float]) -> None:
    """Save points whose weights are all one value."""
    for point, value in values.items():
        evaluator.network.weight.set_data(Tensor(np.full((3, 2), value, np.float32)))
        candidates.save(point, list(evaluator.network.get_parameters()))
        candidates.measure(point, 1.0, evaluator)


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
    values: dict[str | int, float], kept: str, weight: float, tmp_path: Path, evaluator: Evaluator
) -> None:
    candidates = points(tmp_path)
    save_and_measure(candidates, evaluator, values)
    assert candidates.put_chosen(evaluator, range(1, len(values))).name == kept
    np.testing.assert_array_equal(evaluator.network.weight.asnumpy(), np.full((3, 2), weight, np.float32))


def test_a_mean_covers_the_epochs_in_its_name_those_too_that_could_not_be_measured(
    tmp_path: Path, evaluator: Evaluator
) -> None:
    candidates, resumed = points(tmp_path), points(tmp_path)
    save_and_measure(candidates, evaluator, {"start": 9.0, 1: 9.0, 2: np.inf, 3: 1.0, 4: 3.0})
    resumed.restore(candidates.state_arrays(), candidates.state_values())
    assert resumed.choice.seconds == candidates.choice.seconds > 0
    result = resumed.put_chosen(evaluator, range(1, 5))
    assert result.name == "3"
    assert result.candidates[-1]["name"] == "mean of epochs 1 to 4"
    assert not np.isfinite(result.candidates[-1]["loss"])
    np.testing.assert_array_equal(evaluator.network.weight.asnumpy(), np.ones((3, 2), np.float32))
