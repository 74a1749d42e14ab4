"""The direction rules of the study, beside the product's."""

import json
from pathlib import Path

import numpy as np
import pytest

from dimred.config import StageOneConfig, StageTwoConfig
from dimred.run.device import set_up
from dimred.search.bfgs import InverseBFGS
from tests.benchmarks.directions_study import OBJECTIVE_OF, ROWS, GroupPairs, ScaledTrustRegion, Tried, measure
from tests.helpers.tiny_run import stage_1_run
from tests.helpers.tiny_task import TASK

K = 4


@pytest.fixture
def grads() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((12, K)) * [1.0, 2.0, 3.0, 4.0]


def directions(rule, grads: np.ndarray, rejected: tuple[int, ...] = ()) -> np.ndarray:
    """What the rule proposes along a series of gradients; a full step is taken but where it is rejected."""
    state, found = rule.initial(), []
    for step, grad in enumerate(grads):
        proposal = rule.propose(state, grad)
        found.append(proposal.direction)
        assert proposal.slope == pytest.approx(grad @ proposal.direction)
        if step not in rejected:
            state = rule.follow(proposal, grad, 1.0, None)
    return np.array(found)


def test_groups_of_one_step_are_consecutive_pairs(grads):
    np.testing.assert_allclose(directions(GroupPairs(K, 1), grads), directions(InverseBFGS(K), grads), rtol=1e-9)


def test_pair_of_groups_has_the_curvature_of_a_quadratic():
    matrix, rule, places = np.diag([0.1, 0.2, 0.3, 0.4]), GroupPairs(K, 3), [np.ones(K)]
    state, curvatures = rule.initial(), []
    for _ in range(9):
        proposal = rule.propose(state, matrix @ places[-1])
        state = rule.follow(proposal, matrix @ places[-1], 0.5, None)
        places.append(places[-1] + 0.5 * proposal.direction)
        curvatures.append(proposal.curvature if proposal.pair_used else 0.0)
    groups = np.array(places[:9]).reshape(3, 3, K).mean(axis=1)
    expected = [step @ matrix @ step for step in np.diff(groups, axis=0)]
    np.testing.assert_allclose(curvatures, [0.0] * 5 + [expected[0], 0.0, 0.0, expected[1]], rtol=1e-9)


def test_unscaled_region_without_bound_is_bfgs(grads):
    rule = ScaledTrustRegion(np.ones(K), np.inf, np.inf)
    np.testing.assert_allclose(directions(rule, grads), directions(InverseBFGS(K), grads), rtol=1e-12)


def test_region_bounds_the_scaled_step_and_learns(grads):
    spread = np.array([4.0, 2.0, 1.0, 0.5])
    rule = ScaledTrustRegion(spread, 0.5, 2.0)
    proposed = rule.propose(rule.initial(), grads[0])
    assert np.linalg.norm(proposed.direction / spread) == pytest.approx(0.5)
    rule.follow(proposed, grads[0], 1.0, None)
    assert rule.radius == 1.0  # a full step on the boundary
    rule.propose(rule.initial(), grads[1])
    proposed = rule.propose(rule.initial(), grads[1])
    assert rule.radius == 0.25  # a rejected step
    rule.follow(proposed, grads[1], 0.55, None)
    assert rule.radius == pytest.approx(0.55 * 0.25)


@pytest.mark.slow
def test_every_row_runs_from_one_stage_1(tmp_path: Path) -> None:
    schedule = {"name": "constant", "peak": 0.1, "warmup_epochs": 0}
    one = StageOneConfig.model_validate(TASK | {"epochs": 4, "snapshots": {"per_epoch": 2}, "schedule": schedule})
    set_up(1)
    stage_1_run(one)(tmp_path / "run", False)
    two = StageTwoConfig.model_validate(TASK | {"epochs": 2, "reestimate_batches": 1})
    tried = Tried(Path("nowhere"), tmp_path / "run", one, two, 4, 2, tmp_path)
    steps = []
    counted = tried.search_step
    tried.search_step = lambda *arguments: steps.append(arguments[3]) or counted(*arguments)
    measure(tried, ROWS)
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ROWS}
    assert all(np.isfinite(row["test_loss"]) for row in found.values())
    per_epoch, grouped = steps[0], steps[-1]
    assert grouped == -(-per_epoch // OBJECTIVE_OF)
    assert found["no directions"]["passes"] == 4 + 2
    assert found["directions of the snapshots"]["passes"] > found["no directions"]["passes"]
    assert tried.rule is None
