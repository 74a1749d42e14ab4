"""The points of a stage 2: which one is kept, and what a killed run leaves."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.averaging.choice import Candidate, Choice
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


@pytest.mark.parametrize(("before", "end", "kept"), [(2.0, 3.0, "start"), (4.0, 2.5, "5"), (3.0, np.inf, "start")])
def test_val_chooses_between_the_end_and_what_was_best_before_also_after_a_resume(
    before: float, end: float, kept: str, tmp_path: Path, evaluator: Evaluator
) -> None:
    candidates, resumed, weight = points(tmp_path), points(tmp_path), evaluator.network.weight
    for point, value in (("start", before), (5, end)):
        weight.set_data(Tensor(np.full((3, 2), value, np.float32)))
        candidates.save(point, list(evaluator.network.get_parameters()))
        if point == 5:
            candidates.measure(point, evaluator)
        else:
            candidates.add_before(point, Candidate("last", 1.0, *evaluator.measure_val()))
    resumed.restore(candidates.state_arrays(), candidates.state_values())
    assert resumed.choice.seconds == candidates.choice.seconds > 0
    for one in (candidates, resumed):
        weight.set_data(Tensor(np.zeros((3, 2), np.float32)))
        result = one.put_chosen(evaluator)
        assert (result.name, result.n_measured) == (kept, int(np.isfinite(end) or one is candidates))
        np.testing.assert_array_equal(weight.asnumpy(), np.full((3, 2), min(before, end), np.float32))
