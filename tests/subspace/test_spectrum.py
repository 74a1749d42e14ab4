import numpy as np
import pytest

from dimred.errors import SeriesError
from dimred.subspace.spectrum import (
    centre_gram,
    deviation,
    effective_rank,
    principal_directions,
    repair_transform,
    snapshot_directions,
    spread_along,
)
from tests.helpers.planted import planted, random_walk
from tests.oracles.pca import gram_schmidt, principal_components, subspace_distance


def centred_gram(snapshots):
    centred = snapshots.astype(np.float64) - snapshots.astype(np.float64).mean(axis=0)
    return centred @ centred.T


def test_centring_moves_the_origin_of_a_gram_matrix():
    snapshots = random_walk(7, 50).astype(np.float64)
    for origin in (np.zeros(50), snapshots[2], snapshots[:3].mean(axis=0)):
        shifted = snapshots - origin
        assert np.allclose(centre_gram(shifted @ shifted.T), centred_gram(snapshots), rtol=0, atol=1e-13)


def test_directions_are_those_of_the_svd():
    snapshots = random_walk(12, 400).astype(np.float64)
    mean, components, values = principal_components(snapshots, 6)
    gram = centred_gram(snapshots)
    directions = principal_directions(gram, 6)
    rows = directions @ (snapshots - mean)
    assert np.allclose(spread_along(gram, directions), values[:6], rtol=1e-12)
    for row, component in zip(rows, components, strict=True):
        assert abs(row @ component) == pytest.approx(1, abs=1e-12)


def test_signs_do_not_depend_on_the_eigensolvers():
    snapshots = random_walk(9, 60).astype(np.float64)
    gram = centred_gram(snapshots)
    expected = principal_directions(gram, 5)
    order = np.random.default_rng(0).permutation(9)
    for _ in range(5):  # another rounding, other signs inside the solver
        noisy = gram * (1 + 1e-15 * np.random.default_rng(_).standard_normal(gram.shape))
        assert np.allclose(principal_directions((noisy + noisy.T) / 2, 5), expected, atol=1e-9)
    largest = np.abs(expected).argmax(axis=1)
    mirrored = principal_directions(gram[np.ix_(order, order)], 5)
    assert np.allclose(np.abs(mirrored), np.abs(expected[:, order]), atol=1e-10)
    assert all(expected[row, column] > 0 or abs(expected[row]).max() < 1.01 * expected[row].max() for row, column in
               enumerate(largest))  # fmt: skip


def test_equal_scores_of_opposite_sign_do_not_make_the_sign_a_matter_of_rounding():
    scores = np.array([[1.0], [0.2], [-0.2], [-1.0]])
    for tilt in (1e-13, -1e-13):
        tilted = scores + tilt * np.array([[0.0], [0.0], [1.0], [-1.0]])
        assert principal_directions(tilted @ tilted.T, 1)[0, 0] > 0


def test_repeated_snapshots_name_the_effective_rank():
    snapshots = random_walk(5, 300)[[0, 1, 2, 3, 4, 4, 3, 2, 1, 0]]
    gram = centred_gram(snapshots)
    assert effective_rank(np.linalg.eigvalsh(gram)) == 4
    assert len(principal_directions(gram, 4)) == 4
    with pytest.raises(SeriesError, match="n_components is 5, but the 10 snapshots span only 4 directions"):
        principal_directions(gram, 5)
    with pytest.raises(SeriesError, match="3 snapshots are all equal"):
        principal_directions(np.zeros((3, 3)), 1)


def test_noise_of_float32_rounding_is_not_taken_for_a_direction():
    snapshots, _ = planted(12, 2000, np.array([10.0, 5.0]), mean_size=1.0)
    with pytest.raises(SeriesError, match="span only"):
        principal_directions(centred_gram(snapshots * np.float32(1)), 11)


def test_snapshot_directions_are_gram_schmidts():
    snapshots = random_walk(8, 200, step=0.3).astype(np.float64)
    gram = snapshots @ snapshots.T
    made = snapshot_directions(gram, 5)
    expected = gram_schmidt(snapshots[-5:])
    assert np.allclose(made @ snapshots, expected, atol=1e-10)
    centred = snapshots - snapshots.mean(axis=0)
    assert np.allclose(spread_along(gram, made), np.linalg.norm(centred @ expected.T, axis=0), rtol=1e-8)
    repeated = snapshots[[0, 1, 2, 3, 0, 1, 2, 3]]
    with pytest.raises(SeriesError, match="last 8 snapshots span only 4"):
        snapshot_directions(repeated @ repeated.T, 8)


def test_the_repair_makes_rows_orthonormal_and_leaves_the_first_alone():
    rng = np.random.default_rng(0)
    rows, _ = np.linalg.qr(rng.standard_normal((50, 6)))
    tilted = rows.T + 0.1 * rng.standard_normal((6, 50))
    transform = repair_transform(tilted @ tilted.T)
    repaired = transform @ tilted
    assert deviation(repaired @ repaired.T) < 1e-14
    assert subspace_distance(repaired, np.linalg.qr(tilted.T)[0].T) < 1e-13
    assert np.allclose(repaired[0], tilted[0] / np.linalg.norm(tilted[0]))
    assert repair_transform(np.ones((2, 2))) is None
