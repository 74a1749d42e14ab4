"""A search's path: start plus k numbers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dimred.errors import BasisMismatchError, CheckpointError, ConfigError
from dimred.files.checksummed_json import write_checksummed
from dimred.subspace.basis import SubspaceBasis
from dimred.subspace.path import SubspacePath, make_path, read_path

K, M, STEPS = 4, 50, 7


@pytest.fixture
def searched() -> tuple[SubspacePath, np.ndarray, SubspaceBasis, list[np.ndarray]]:
    rng = np.random.default_rng(2)
    basis = SubspaceBasis(np.linalg.qr(rng.normal(size=(M, K)))[0].T.astype(np.float32))
    start = rng.normal(size=M).astype(np.float32)
    steps = [rng.normal(size=K) for _ in range(STEPS)]
    return make_path(steps, start, basis), start, basis, steps


def test_any_step_is_the_start_plus_the_steps_before_it(searched, tmp_path: Path) -> None:
    path, start, basis, steps = searched
    path.save(tmp_path / "path.json")
    read = read_path(tmp_path / "path.json")
    assert read.n_steps == STEPS
    np.testing.assert_array_equal(read.coordinates, path.coordinates)
    np.testing.assert_array_equal(read.weights_at(0, start, basis), start)
    for step in range(STEPS + 1):
        moved = np.sum(steps[:step], axis=0) @ basis.components.astype(np.float64) if step else 0
        np.testing.assert_allclose(read.weights_at(step, start, basis), start + moved, atol=1e-5)


def test_another_start_another_basis_and_a_step_that_was_not_taken_are_refused(searched) -> None:
    path, start, basis, _ = searched
    with pytest.raises(ConfigError, match="0 to 7"):
        path.weights_at(STEPS + 1, start, basis)
    with pytest.raises(BasisMismatchError, match="other weights"):
        path.weights_at(1, start + 1, basis)
    with pytest.raises(BasisMismatchError, match="another basis"):
        path.weights_at(1, start, SubspaceBasis(basis.components[:2]))


@given(
    content=st.recursive(
        st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.fixed_dictionaries(
                {"format": st.just("dimred subspace path"), "version": st.just(2), "coordinates": inner}
            )
        ),
    )
)
def test_any_json_is_a_path_or_our_own_error(content, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any_path.json"
    write_checksummed(file, content if isinstance(content, dict) else {"content": content})
    with pytest.raises(CheckpointError, match="not the path of a search"):
        read_path(file)
