"""The digest of weights: manifests and bases on disk carry it, so its value may never change."""

import hashlib

import numpy as np
import pytest

from dimred.checkpoints.layout import CHUNK, chunk_digests, vector_digest

VECTOR = np.arange(150_000, dtype=np.float32)


def test_the_values_are_those_of_the_first_version():
    expected = "588ca90395877b5edec06974c470d3d383a624e77c8f385449a1652a40e314c4"
    assert vector_digest(VECTOR) == expected
    rows = np.arange(300_000, dtype=np.float32).reshape(2, -1)
    assert vector_digest(rows) == "3140eebaeb8c85d63498765b4a9b32ebffa7bd1ab8de013eacefbcb3fd5e9a69"


@pytest.mark.parametrize("dtype", [np.float64, ">f4"])
def test_the_type_does_not_matter(dtype):
    assert vector_digest(VECTOR.astype(dtype)) == vector_digest(VECTOR)


def test_a_chunk_is_hashed_row_after_row():
    rows = np.arange(2 * (CHUNK + 7), dtype=np.float32).reshape(2, -1)
    first, last = chunk_digests(rows)
    assert bytes(first) == hashlib.sha256(rows[:, :CHUNK].tobytes()).digest()
    assert bytes(last) == hashlib.sha256(rows[:, CHUNK:].tobytes()).digest()
