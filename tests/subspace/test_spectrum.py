import numpy as np
import pytest

from dimred.errors import SeriesError
from dimred.subspace.spectrum import principal_directions
from tests.helpers.planted import planted, random_walk


def centred_gram(snapshots):
    centred = snapshots.astype(np.float64) - snapshots.astype(np.float64).mean(axis=0)
    return centred @ centred.T


def test_signs_do_not_depend_on_the_eigensolvers():
    snapshots = random_walk(9, 60).astype(np.float64)
    gram = centred_gram(snapshots)
    expected = principal_directions(gram, 5)
    order = np.random.default_rng(0).permutation(9)
    for _ in range(5):  # another rounding, other signs inside the solver
        noisy = gram * (1 + 1e-15 * np.random.default_rng(_).standard_normal(gram.shape))
        assert np.allclose(principal_directions((noisy + noisy.T) / 2, 5), expected, atol=1e-9)
    permuted = principal_directions(gram[np.ix_(order, order)], 5)
    assert np.allclose(np.abs(permuted), np.abs(expected[:, order]), atol=1e-10)
    assert np.all(expected.max(axis=1) > np.abs(expected).max(axis=1) / 1.01)


def test_equal_scores_of_opposite_sign_do_not_make_the_sign_a_matter_of_rounding():
    scores = np.array([[1.0], [0.2], [-0.2], [-1.0]])
    for tilt in (1e-13, -1e-13):
        tilted = scores + tilt * np.array([[0.0], [0.0], [1.0], [-1.0]])
        assert principal_directions(tilted @ tilted.T, 1)[0, 0] > 0


def test_noise_of_float32_rounding_is_not_taken_for_a_direction():
    snapshots, _ = planted(12, 2000, np.array([10.0, 5.0]), mean_size=1.0)
    with pytest.raises(SeriesError, match="span only"):
        principal_directions(centred_gram(snapshots * np.float32(1)), 11)
