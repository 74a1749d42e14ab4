import json
import os

import pytest

from dimred.io.checksums import read_checksummed, write_checksummed
from dimred.io.file_format import FileFormat

FORMAT = FileFormat("a format", 1)
CONTENT = {
    "name": "ü",
    "path that is not UTF-8": os.fsdecode(b"daten_\xe4"),
    "numbers": [1, 2.5e-7, None],
    "nested": {"checksum": "0" * 64, "empty": ""},
}


def test_what_is_sealed_is_read_back_and_is_plain_json(tmp_path):
    write_checksummed(tmp_path / "a.json", FORMAT, CONTENT)
    assert read_checksummed(tmp_path / "a.json", FORMAT) == CONTENT
    plain = json.loads((tmp_path / "a.json").read_text())
    assert plain.pop("checksum")
    assert plain == {"format": "a format", "version": 1, **CONTENT}


def test_every_flipped_bit_and_every_truncation_is_found(tmp_path):
    path = tmp_path / "a.json"
    write_checksummed(path, FORMAT, CONTENT)
    whole = path.read_bytes()
    copies = [whole[:length] for length in range(len(whole))]
    for bit in range(8 * len(whole)):
        changes = bytearray(whole)
        changes[bit // 8] ^= 1 << bit % 8
        copies.append(bytes(changes))
    for content in copies:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"\w"):
            read_checksummed(path, FORMAT)


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)  # without a byte on the disk
    with pytest.raises(ValueError, match="more than 67,108,864 bytes"):
        read_checksummed(tmp_path / "a.json", FORMAT)
