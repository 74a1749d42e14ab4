import re
import shutil

import numpy as np
import pytest

from dimred.checkpoints.layout import CHUNK, WeightLayout
from dimred.errors import BasisMismatchError, ConfigError
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.metadata import metadata_path
from tests.helpers.planted import random_walk, write_series

M = CHUNK + 300


@pytest.fixture(scope="module")
def walk_basis(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    series = write_series(directory / "s", random_walk(7, M))
    return fit_basis(series, 4, out=directory / "pca_mat.npy")


@pytest.fixture
def pair(walk_basis, tmp_path):
    for path in (walk_basis.path, metadata_path(walk_basis.path)):
        shutil.copy(path, tmp_path)
    return tmp_path / "pca_mat.npy"


def test_what_was_fitted_is_loaded(walk_basis, pair):
    basis = load_basis(pair, layout=walk_basis.layout)
    for name in ("components", "mean", "singular_values", "explained_variance", "explained_variance_ratio", "gram"):
        assert np.array_equal(getattr(basis, name), getattr(walk_basis, name))
    assert (basis.layout, basis.snapshots, basis.kind) == (walk_basis.layout, walk_basis.snapshots, "pca")
    assert (basis.n_components, basis.n_weights) == (4, M)
    assert isinstance(basis.components, np.memmap)
    assert isinstance(basis.mean, np.memmap)


def test_a_basis_from_memory_outlives_its_temporary_files(tmp_path):
    basis = fit_basis(write_series(tmp_path, random_walk(5, 500)), 3)
    assert basis.path is None
    assert np.isfinite(basis.components).all()
    assert np.isfinite(basis.mean).all()


@pytest.mark.parametrize(
    ("names", "shapes", "words"),
    [
        (lambda n: n[::-1], lambda s: s[::-1], "the order differs"),
        (lambda n: n[:2], lambda s: s[:2], "in the basis and is missing from the network"),
        (lambda n: (*n, "more"), lambda s: (*s, (3,)), "is missing from the basis and is 'more' (3,) in the network"),
    ],
)
def test_another_network_is_refused_with_the_first_difference(pair, walk_basis, names, shapes, words):
    layout = WeightLayout(names(walk_basis.layout.names), shapes(walk_basis.layout.shapes))
    with pytest.raises(BasisMismatchError, match="was made for another network") as error:
        load_basis(pair, layout=layout)
    assert words in str(error.value)
    assert str(pair) in str(error.value)


def test_a_real_network_is_accepted_or_refused(tmp_path, caplog):
    nn = pytest.importorskip("mindspore.nn")
    network = nn.SequentialCell(nn.Dense(6, 5), nn.Dense(5, 2))
    layout = WeightLayout.from_network(network)
    path = tmp_path / "bare.npy"
    np.save(path, np.eye(3, layout.size, dtype=np.float32))
    assert load_basis(path, network=network).n_weights == layout.size
    assert "no bare.h5 beside it" in caplog.text
    with pytest.raises(BasisMismatchError, match=r"has 47 columns; the network has 35 trainable weights"):
        load_basis(path, network=nn.Dense(6, 5))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\xc0\x7f", "has nan in row 3, column 65835"),
        (b"\0\0\x80\xff", "has -inf in row 3, column 65835"),
        (b"\0\0\x80\x3f", "row 3 has squared length"),
        (None, "their digests differ"),
    ],
)
def test_changed_rows_are_found(pair, data, words):
    content = bytearray(pair.read_bytes())
    content[-4:] = data or [content[-4] ^ 1, *content[-3:]]
    pair.write_bytes(content)
    with pytest.raises(BasisMismatchError, match=words):
        load_basis(pair)
    assert load_basis(pair, verify=False).n_components == 4


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("length", [0, 5, 60, 200])
def test_a_truncated_matrix_is_refused(pair, bare, length):
    if bare:
        metadata_path(pair).unlink()
    pair.write_bytes(pair.read_bytes()[:length])
    with pytest.raises(BasisMismatchError, match=r"pca_mat\.npy"):
        load_basis(pair)


def test_a_flipped_bit_anywhere_in_the_pair_is_found(pair):
    for path in (pair, metadata_path(pair)):
        whole = path.read_bytes()
        for bit in np.random.default_rng(2).integers(8 * len(whole), size=150):
            copy = bytearray(whole)
            copy[bit // 8] ^= 1 << bit % 8
            path.write_bytes(copy)
            with pytest.raises(BasisMismatchError):
                load_basis(pair)
        path.write_bytes(whole)
    load_basis(pair)


def test_two_files_of_different_results_are_not_taken_for_a_pair(pair, walk_basis, tmp_path):
    """A crash between the two renames leaves such files."""
    other = fit_basis(write_series(tmp_path / "s", random_walk(7, M, seed=1)), 4, out=tmp_path / "other.npy")
    smaller = fit_basis(write_series(tmp_path / "t", random_walk(7, 90)), 3, out=tmp_path / "smaller.npy")
    for basis in (other, smaller):
        shutil.copy(metadata_path(basis.path), metadata_path(pair))
        with pytest.raises(BasisMismatchError, match="their digests differ"):
            load_basis(pair)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def orthonormal(dtype, k=4, m=300):
    return np.linalg.qr(np.random.default_rng(0).standard_normal((m, k)))[0].T.astype(dtype)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bare_matrix_from_elsewhere_works_with_a_warning(tmp_path, dtype, order, caplog):
    rows = orthonormal(dtype)
    np.save(tmp_path / "a.npy", np.asarray(rows, order=order))
    layout = WeightLayout(("w",), ((300,),))
    basis = load_basis(tmp_path / "a.npy", layout=layout)
    assert re.fullmatch(r".*a\.npy has no a\.h5 .*can't check .* in this order.*", caplog.messages[0])
    assert basis.components.dtype == np.float32
    assert basis.components.flags.c_contiguous
    assert isinstance(basis.components, np.memmap)
    assert np.array_equal(basis.components, rows.astype(np.float32))
    assert (basis.mean, basis.layout, basis.gram, basis.snapshots, basis.kind) == (None, None, None, (), None)
    assert (basis.singular_values, basis.explained_variance, basis.explained_variance_ratio) == (None, None, None)


def test_the_float64_matrix_of_mindspores_boost_module_works(tmp_path, caplog):
    base = pytest.importorskip("mindspore.boost.base")
    snapshots = random_walk(12, 2000)
    np.save(tmp_path / "pca_mat_temp.npy", base._compute_pca_mat(snapshots.astype(np.float64), 4, randomized=False))
    theirs = load_basis(tmp_path / "pca_mat_temp.npy")
    assert "can't check" in caplog.text
    ours = fit_basis(write_series(tmp_path / "s", snapshots), 4)
    assert np.allclose(np.abs(theirs.components @ ours.components.T), np.eye(4), atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (orthonormal(np.float64).T, "not an orthonormal basis"),
        (2 * orthonormal(np.float32), "row . has squared length 4 instead of 1"),
        (orthonormal(np.float32)[[0, 1, 1, 2]], "rows 1 and 2 have inner product 1 instead of 0"),
        (np.full((2, 9), np.nan, np.float32), "has nan in row 0, column 0"),
        (np.full((2, 9), 0x7FA00000, np.uint32).view(np.float32), "has nan in row 0, column 0; every"),  # signalling
        (np.full((2, 9), 1e200), "has inf in row 0"),
        (np.ones(5, np.float32), r"float32 \(5,\)"),
        (np.ones((2, 5), np.int64), "int64"),
        (np.ones((0, 5), np.float32), r"\(0, 5\)"),
        (np.ones((2, 5), ">f4"), ">f4"),
        (np.array([[Bomb()]], dtype=object), r"not a whole \.npy file"),
    ],
)
def test_a_bare_matrix_that_is_no_basis_is_refused(tmp_path, rows, words):
    np.save(tmp_path / "a.npy", rows)
    with pytest.raises(BasisMismatchError, match=words):
        load_basis(tmp_path / "a.npy")


def test_a_header_that_claims_too_much_takes_no_memory(tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        shape = (32, 10**15)
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with pytest.raises(BasisMismatchError, match="not a whole"):
        load_basis(tmp_path / "a.npy")


def test_vectors_may_be_lists_and_those_of_another_length_are_refused(walk_basis):
    vector = np.arange(M) / M
    assert np.array_equal(walk_basis.project(vector.tolist()), walk_basis.project(vector))
    assert np.array_equal(walk_basis.back_project([1, 2, 3, 4]), walk_basis.back_project(np.array([1.0, 2, 3, 4])))
    with pytest.raises(BasisMismatchError, match=rf"weight_vector has shape \(3,\).*\({M},\)"):
        walk_basis.project(np.ones(3))
    with pytest.raises(BasisMismatchError, match=r"coordinates has shape \(3,\).*\(4,\)"):
        walk_basis.back_project(np.ones(3))


@pytest.mark.parametrize("rows", [3 * np.eye(2, 5), np.ones((2, 5)), np.full((1, 5), np.nan)])
def test_rows_that_a_program_made_itself_are_checked(rows):
    layout = WeightLayout(("a",), ((5,),))
    SubspaceBasis(np.eye(2, 5, dtype=np.float32)).check(layout)
    with pytest.raises(BasisMismatchError, match=r"The basis (is not an orthonormal|has nan)"):
        SubspaceBasis(rows.astype(np.float32)).check(layout)


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("series", ["a.ckpt"], r"series is \['a.ckpt'\]; it must be the path of a folder"),
        ("path", None, "path is None; it must be the path"),
        ("network", 3, "network is 3; it must be a MindSpore cell, or give layout"),
        ("layout", {}, r"layout is \{\}; it must be a dimred.WeightLayout"),
    ],
)
def test_an_argument_of_another_type_is_named(tmp_path, argument, value, words):
    write_series(tmp_path, random_walk(3, 2000))
    for call, first in ((fit_basis, "series"), (load_basis, "path")):
        if argument in (first, "network", "layout"):
            with pytest.raises(ConfigError, match=words):
                call(**{first: tmp_path} | {argument: value})


def test_a_basis_is_opened_by_either_file_and_describes_itself(tmp_path):
    path = fit_basis(write_series(tmp_path / "s", random_walk(5, 2000)), 3, out=tmp_path / "pca_mat.npy").path
    for argument in (path, path.with_suffix(".h5"), str(path.with_suffix(".h5"))):
        description = (
            f"<SubspaceBasis: 3 directions of 2,000 weights, made from 5 snapshots, kind='pca', path='{path}'>"
        )
        assert repr(load_basis(argument)) == description
    np.save(tmp_path / "bare.npy", np.eye(2, 7, dtype=np.float32))
    bare = repr(load_basis(tmp_path / "bare.npy"))
    assert bare == f"<SubspaceBasis: 2 directions of 7 weights, path='{tmp_path / 'bare.npy'}'>"
