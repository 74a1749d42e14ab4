"""JSON with its own checksum."""

import json

import pytest

from dimred.weights.sealed_json import read_sealed, seal, unseal, write_sealed

CONTENT = {"name": "ü", "numbers": [1, 2.5e-7, None], "nested": {"checksum": "0" * 64, "empty": ""}}


def test_what_is_sealed_is_read_back_and_is_plain_json(tmp_path):
    write_sealed(tmp_path / "a.json", CONTENT)
    assert read_sealed(tmp_path / "a.json") == CONTENT
    plain = json.loads((tmp_path / "a.json").read_text())
    assert plain.pop("checksum")
    assert plain == CONTENT


def test_every_flipped_bit_and_every_truncation_is_found():
    whole = seal(CONTENT).encode()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"\w"):
            unseal(bytes(damaged))
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"\w"):
            unseal(whole[:length])


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    write_sealed(tmp_path / "a.json", CONTENT)
    with pytest.raises(ValueError, match="more than 20 bytes"):
        read_sealed(tmp_path / "a.json", largest=20)
