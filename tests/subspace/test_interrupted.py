"""A PCA that is interrupted, or meets the result of another one, leaves nothing wrong behind."""

import signal

import numpy as np
import pytest

from dimred.checkpoints.layout import CHUNK
from dimred.errors import ConfigError, StoppedError
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.planted import random_walk, write_series

N, K, M = 6, 3, 4 * CHUNK - 99


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("series"), random_walk(N, M))


@pytest.mark.parametrize("signalled", [KeyboardInterrupt(), StoppedError(signal.SIGTERM)])
def test_an_interrupt_leaves_nothing(signalled, series, tmp_path):
    """By ctrl-C of ``dimred pca``, or by a signal to the run that fits its basis on the way."""

    def interrupt(phase, done, total):
        if phase.startswith("writing"):
            raise signalled

    with pytest.raises(type(signalled)):
        fit_basis(series, K, out=tmp_path / "pca_mat.npy", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_of_two_runs_for_one_result_the_slower_one_replaces_nothing(series, tmp_path):
    out, faster = tmp_path / "pca_mat.npy", []

    def progress(phase, done, total):
        if not faster:
            faster.append(fit_basis(series.select(last=N - 1), 2, out=out))

    with pytest.raises(ConfigError, match="would be replaced"):
        fit_basis(series, K, out=out, progress=progress)
    assert np.array_equal(load_basis(out).components, faster[0].components)


def test_a_file_of_somebody_else_that_ends_in_h5_is_kept(series, tmp_path):
    (tmp_path / "pca_mat.h5").write_text("mine")
    with pytest.raises(ConfigError, match=r"pca_mat\.h5 would be replaced"):
        fit_basis(series, K, out=tmp_path / "pca_mat.npy")
    assert (tmp_path / "pca_mat.h5").read_text() == "mine"
