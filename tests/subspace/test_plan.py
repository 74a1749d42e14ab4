import numpy as np
import pytest

from dimred.errors import SeriesError
from dimred.files.digest import CHUNK
from dimred.subspace.gram_and_rows import working_bytes
from dimred.subspace.plan import advise, leave_one_out, make_plan, sample_gram
from dimred.weights.matrix import WeightMatrix
from tests.helpers.planted import planted, random_walk, write_series
from tests.oracles.pca import leave_one_out_error


def gram_of(snapshots):
    centred = snapshots.astype(np.float64) - snapshots.astype(np.float64).mean(axis=0)
    return centred @ centred.T


@pytest.mark.parametrize("left_out", [0, 4, 8])
def test_leave_one_out_is_that_of_the_whole_matrix(left_out):
    snapshots = random_walk(9, 300)
    distance, errors = leave_one_out(gram_of(snapshots), left_out)
    others = np.delete(snapshots.astype(np.float64), left_out, axis=0)
    assert distance == pytest.approx(np.sum((snapshots[left_out] - others.mean(axis=0)) ** 2), rel=1e-10)
    for k in (1, 3, 7):
        assert errors[k - 1] == pytest.approx(leave_one_out_error(snapshots, left_out, k), rel=1e-8)


def test_the_knee_is_the_planted_number_of_directions():
    rng = np.random.default_rng(0)
    snapshots, _ = planted(30, 4000, np.array([9.0, 7.0, 5.0, 4.0]), mean_size=0)
    noise = 1e-3 * rng.standard_normal(snapshots.shape)
    advice = advise(gram_of(snapshots + noise), 20)
    assert advice.n_components == 4
    assert advice.errors[3] < 0.01 < advice.errors[2]


def test_early_snapshots_that_only_disturb_are_to_be_skipped():
    """Twelve early snapshots move in directions of their own; the late ones in five others."""
    rng = np.random.default_rng(1)
    early = 30 * rng.standard_normal((12, 12)) @ rng.standard_normal((12, 2000))
    late = rng.standard_normal((24, 5)) @ rng.standard_normal((5, 2000))
    advice = advise(gram_of(np.vstack([early, late]) + 1e-3 * rng.standard_normal((36, 2000))), 8)
    assert 9 <= advice.skip_first <= 12
    assert advice.n_components == 5 + 12 - advice.skip_first  # an early snapshot that stays costs a direction


@pytest.mark.parametrize(("n_snapshots", "n_components"), [(40, 1), (40, 4), (40, 32), (6, 1), (4, 3)])
def test_enough_snapshots_are_kept_for_the_directions_and_for_the_newest_quarter(n_snapshots, n_components):
    gram = gram_of(random_walk(n_snapshots, 500))
    advice = advise(gram, n_components)
    kept = n_snapshots - advice.skip_first
    assert kept >= min(max(n_components + 2, n_snapshots // 4 + 2), n_snapshots)
    curve = [leave_one_out(gram[advice.skip_first :, advice.skip_first :], kept - 1 - back) for back in range(2)]
    assert len(advice.errors) <= min(len(errors) for _, errors in curve)


def test_snapshots_that_are_equal_have_a_plan_too():
    assert advise(np.zeros((5, 5)), 2).n_components == 1
    alone = np.zeros((6, 30))
    alone[-1] = 1.0
    assert advise(gram_of(alone), 2).errors.tolist() == [1.0]


def test_a_sample_of_all_columns_is_exact_and_of_few_is_near(tmp_path, monkeypatch):
    snapshots = random_walk(8, 40_000)
    matrix = WeightMatrix(write_series(tmp_path, snapshots))
    assert np.allclose(sample_gram(matrix), gram_of(snapshots), rtol=1e-12)
    monkeypatch.setattr("dimred.subspace.plan._SAMPLE_STRIPS", 8)
    read = []
    monkeypatch.setattr(WeightMatrix, "read", lambda self, start, out, real=WeightMatrix.read: (
        read.append(out.shape[1]), real(self, start, out)))  # fmt: skip
    near = sample_gram(matrix)
    assert sum(read) == 8 * 1024
    assert np.allclose(near, gram_of(snapshots), rtol=0, atol=0.1 * np.abs(near).max())


def test_the_plan_counts_what_the_run_takes(tmp_path):
    matrix = WeightMatrix(write_series(tmp_path / "s", random_walk(8, 5_000)))
    plan = make_plan(matrix, 5, tmp_path, 10**9)
    assert (plan.n_snapshots, plan.n_weights, plan.read_bytes) == (8, 5_000, 4 * 8 * 5_000)
    assert plan.disk_bytes >= 4 * 5_000 * 7
    assert plan.memory_bytes <= working_bytes(8, 5_000, 5, CHUNK)
    assert plan.seconds > 0
    assert plan.advice.skip_first == 0 or plan.advice.skip_first < 4
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_few_snapshots_give_no_advice_and_bad_ones_an_error(tmp_path):
    assert make_plan(WeightMatrix(write_series(tmp_path / "a", random_walk(3, 50))), 2, tmp_path, 10**9).advice is None
    snapshots = random_walk(5, 50)
    snapshots[2, 7] = np.nan
    with pytest.raises(SeriesError, match="not finite"):
        make_plan(WeightMatrix(write_series(tmp_path / "b", snapshots)), 2, tmp_path, 10**9)
