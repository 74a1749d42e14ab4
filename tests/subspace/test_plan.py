import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.matrix import WeightMatrix
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import SeriesError
from dimred.subspace.gram_and_rows import sample_gram, working_bytes
from dimred.subspace.plan import make_plan
from tests.helpers.planted import as_weights, random_walk, write_series


def gram_of(snapshots):
    centred = snapshots.astype(np.float64) - snapshots.astype(np.float64).mean(axis=0)
    return centred @ centred.T


def test_a_sample_of_all_columns_is_exact_and_of_few_is_near(tmp_path, monkeypatch):
    snapshots = random_walk(8, 40_000)
    matrix = WeightMatrix(write_series(tmp_path, snapshots))
    assert np.allclose(sample_gram(matrix), gram_of(snapshots), rtol=1e-12)
    monkeypatch.setattr("dimred.subspace.gram_and_rows._SAMPLE_BLOCKS", 8)
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
    assert plan.memory_bytes == working_bytes(8, 5_000, 5)
    assert plan.seconds > 0
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_sample_with_a_number_that_is_not_finite_is_refused(tmp_path):
    series = write_series(tmp_path, random_walk(5, 50))
    write_checkpoint(series.paths[2], as_weights(np.full(50, np.nan, np.float32)))
    with pytest.raises(SeriesError, match="not finite"):
        sample_gram(WeightMatrix(CheckpointSeries.open(tmp_path)))
