"""The digest of weights: manifests and bases on disk carry it, so its value may never change."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dimred.io.digest import CHUNK, chunk_digests, digest_of_chunks, vector_digest

VECTOR = np.arange(150_000, dtype=np.float32)


def test_the_values_are_those_of_the_first_version():
    expected = "588ca90395877b5edec06974c470d3d383a624e77c8f385449a1652a40e314c4"
    assert vector_digest([VECTOR]) == digest_of_chunks(chunk_digests(VECTOR)) == expected
    rows = np.arange(300_000, dtype=np.float32).reshape(2, -1)
    assert digest_of_chunks(chunk_digests(rows)) == "3140eebaeb8c85d63498765b4a9b32ebffa7bd1ab8de013eacefbcb3fd5e9a69"


@given(st.lists(st.integers(0, len(VECTOR)), max_size=6))
def test_the_parts_of_a_vector_do_not_matter(cuts):
    assert vector_digest(np.split(VECTOR, sorted(cuts))) == vector_digest([VECTOR])


@pytest.mark.parametrize(
    "change", [lambda v: v.astype(np.float64), lambda v: v.reshape(300, 500), lambda v: v.astype(">f4")]
)
def test_type_and_shape_do_not_matter(change):
    assert vector_digest([change(VECTOR)]) == vector_digest([VECTOR])


def test_a_chunk_is_hashed_row_after_row():
    rows = np.arange(2 * (CHUNK + 7), dtype=np.float32).reshape(2, -1)
    first, last = chunk_digests(rows)
    assert bytes(first) == hashlib.sha256(rows[:, :CHUNK].tobytes()).digest()
    assert bytes(last) == hashlib.sha256(rows[:, CHUNK:].tobytes()).digest()
