import errno
import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dimred.checkpoints.checkpoint_io import read_checkpoint, read_index, write_checkpoint
from dimred.checkpoints.stored_tensor import read_exactly, write_exactly
from dimred.errors import CheckpointError, ConfigError

RNG = np.random.default_rng(0)
WEIGHTS = {
    "conv.weight": RNG.standard_normal((4, 3, 3, 3), dtype=np.float32),
    "half": np.arange(5, dtype=np.float16),
    "double": np.linspace(0, 1, 3),
    "flags": np.array([True, False]),
    "counts": np.arange(4, dtype=np.int64),
    "层.weight": np.ones((2, 2), np.float32),
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0,), np.float32),
}
EXTRA = {"epoch": 70, "rate": 0.1, "note": "späte Schritte", "done": True, "table": np.arange(3, dtype=np.int32)}
SUFFIXES = pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])


@SUFFIXES
def test_what_is_written_is_read_back(tmp_path, suffix):
    path = tmp_path / f"a b{suffix}"
    write_checkpoint(path, WEIGHTS, EXTRA)
    read = read_checkpoint(path)
    assert set(read) == {*WEIGHTS, *EXTRA}
    for name, value in WEIGHTS.items():
        assert np.array_equal(read[name], value)
        assert (read[name].dtype, read[name].shape) == (value.dtype, value.shape)
    assert {name: read[name].item() for name in ("epoch", "rate", "note", "done")} == {
        "epoch": 70,
        "rate": 0.1,
        "note": "späte Schritte",
        "done": True,
    }
    assert list(tmp_path.iterdir()) == [path]


@SUFFIXES
def test_mindspore_reads_what_we_write_and_the_reverse(tmp_path, suffix):
    mindspore = pytest.importorskip("mindspore")
    path = tmp_path / f"ours{suffix}"
    weights = {name: value for name, value in WEIGHTS.items() if value.size}
    write_checkpoint(path, weights, EXTRA)
    parameters = mindspore.load_checkpoint(str(path), format=suffix[1:])
    for name, value in weights.items():
        assert np.array_equal(parameters[name].asnumpy(), value)
    assert int(parameters["epoch"].asnumpy()) == 70
    theirs = tmp_path / f"theirs{suffix}"
    tensors = [{"name": name, "data": mindspore.Tensor(value)} for name, value in weights.items()]
    tensors.append(
        {"name": "brain", "data": mindspore.Tensor(np.array([1.5, -2.0, 3.25], np.float32), mindspore.bfloat16)}
    )
    if suffix == ".safetensors":
        tensors.pop()  # its NumPy writer has no bfloat16
    options = {"crc_check": True} if suffix == ".ckpt" else {}
    mindspore.save_checkpoint(tensors, str(theirs), format=suffix[1:], append_dict={"epoch": 3}, **options)
    read = read_checkpoint(theirs)
    for name, value in weights.items():
        assert np.array_equal(read[name], value)
        assert read[name].shape == value.shape
    assert read["epoch"].item() == 3
    if suffix == ".ckpt":
        assert read["brain"].dtype == np.float32
        assert read["brain"].tolist() == [1.5, -2.0, 3.25]


def test_a_tensor_in_several_records_as_mindspore_splits_large_ones(tmp_path, monkeypatch):
    mindspore = pytest.importorskip("mindspore")
    monkeypatch.setattr("dimred.checkpoints.ckpt_format.PIECE_BYTES", 40)
    path = tmp_path / "split.ckpt"
    write_checkpoint(path, WEIGHTS)
    assert len(read_index(path)["conv.weight"].pieces) == 11
    assert np.array_equal(read_checkpoint(path)["conv.weight"], WEIGHTS["conv.weight"])
    assert np.array_equal(mindspore.load_checkpoint(str(path))["conv.weight"].asnumpy(), WEIGHTS["conv.weight"])


def test_no_call_asks_the_system_for_more_than_it_takes(tmp_path, monkeypatch):
    """macOS refuses to read or write 2 GiB in one call; Linux takes a part. Here the limit is 1,000 bytes."""
    values = RNG.integers(0, 256, 2_500, np.uint8)
    monkeypatch.setattr("dimred.checkpoints.stored_tensor.MOST_BYTES_AT_ONCE", 1_000)
    pwrite, preadv = os.pwrite, os.preadv

    def refuse(size):
        if size > 1_000:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "pwrite", lambda file, data, at: refuse(len(data)) or pwrite(file, data, at))
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: refuse(len(parts[0])) or preadv(file, parts, at))
    with (tmp_path / "large").open("w+b") as file:
        write_exactly(file.fileno(), values, 3)
        found = np.empty_like(values)
        read_exactly(file.fileno(), found, 3, tmp_path / "large")
    assert np.array_equal(found, values)


@SUFFIXES
def test_every_truncation_is_found_or_a_whole_file_of_fewer_tensors(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write_checkpoint(path, {"a": np.arange(3.0), "b": np.ones((2, 2), np.float32)}, {"epoch": 1})
    whole = path.read_bytes()
    cut = tmp_path / f"cut{suffix}"
    good, messages = [], []
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        try:
            good.append(tuple(read_checkpoint(cut)))
        except CheckpointError as error:
            messages.append(str(error))
    assert all(str(cut) in message for message in messages)
    # A .ckpt cut exactly between two records is a whole file of fewer tensors; the layout finds what is missing.
    assert good == ([("a",), ("a", "b"), ("a", "b", "epoch")] if suffix == ".ckpt" else [])


def test_every_flipped_bit_of_a_ckpt_is_found(tmp_path):
    path = tmp_path / "a.ckpt"
    arrays = {"a": np.arange(3.0), "b": np.ones((2, 2), np.float32)}
    write_checkpoint(path, arrays, {"epoch": 1, "note": "x"})
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        copy = bytearray(whole)
        copy[bit // 8] ^= 1 << bit % 8
        path.write_bytes(copy)
        with pytest.raises(CheckpointError, match=r"a\.ckpt"):
            read_checkpoint(path)


def test_the_library_of_the_format_reads_what_we_write_and_the_reverse(tmp_path):
    write_checkpoint(tmp_path / "ours.safetensors", WEIGHTS, EXTRA)
    parameters = load_file(tmp_path / "ours.safetensors")
    assert set(parameters) == {*WEIGHTS, *EXTRA} - {"note"}
    assert all(np.array_equal(parameters[name], value) for name, value in WEIGHTS.items())
    save_file(WEIGHTS, tmp_path / "theirs.safetensors", {"format": "pt", "note": "y"})
    read = read_checkpoint(tmp_path / "theirs.safetensors")
    assert set(read) == {*WEIGHTS, "note"}
    assert all(np.array_equal(read[name], value) and read[name].shape == value.shape for name, value in WEIGHTS.items())


def _ckpt_record(name: bytes, dims: bytes, kind: bytes, content: bytes) -> bytes:
    tensor = dims + b"\x12" + bytes([len(kind)]) + kind + b"\x1a" + bytes([len(content)]) + content
    value = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(tensor)]) + tensor
    return b"\x0a" + bytes([len(value)]) + value


def _safetensors(header: dict, data: bytes = b"\0" * 8) -> bytes:
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


def _f32(shape: list[int], offsets: list[int], kind: str = "F32") -> bytes:
    return _safetensors({"w": {"dtype": kind, "shape": shape, "data_offsets": offsets}})


def _twice() -> bytes:
    """Make a header that names a tensor twice, as no dictionary can."""
    entry = b'"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    head = b"{" + entry + b"," + entry + b"}"
    return len(head).to_bytes(8, "little") + head + b"\0" * 8


OVERLAP = {str(i): {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]} for i in range(3)}
W, V = (_ckpt_record(name, b"\x08\x02", b"Float32", b"\0" * 8) for name in (b"w", b"v"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.ckpt", b"", "is empty"),
        ("text.ckpt", b"hello, world", "no record starts here"),
        ("pickle.ckpt", b"\x80\x04\x95", "no record"),
        ("huge.ckpt", b"\x0a\xff\xff\xff\xff\xff\xff\xff\x7f", "more than there are"),
        ("long.ckpt", b"\x0a" + b"\xff" * 12, "longer than 64 bits"),
        ("short.ckpt", _ckpt_record(b"w", b"\x08\x04", b"Float32", b"\0" * 8), "needs 16 bytes but has 8"),
        ("overflow.ckpt", _ckpt_record(b"w", b"\x08" + b"\xff" * 8 + b"\x7f", b"Float32", b"\0" * 8), "needs"),
        ("kind.ckpt", _ckpt_record(b"w", b"\x08\x02", b"Object", b"\0" * 8), "'Object'"),
        ("twice.ckpt", W + V + W, "appears twice"),
        ("inner.ckpt", W[:6] + bytes([W[6] - 1]) + W[7:], "contradict each other"),
        ("dims.ckpt", _ckpt_record(b"w", b"\x0a\x64" + b"\1" * 100, b"Float32", b"\0" * 4), "more than 32 dimensions"),
        ("name.ckpt", b"\x0a\xff\xff\x03\x0a\xf0\xff\x03" + b"n" * 65535, "not a whole MindSpore checkpoint"),
        ("overlap.safetensors", _safetensors(OVERLAP), "invalid offset"),
        ("small.safetensors", b"\1\2\3", "header too small"),
        ("huge.safetensors", (10**12).to_bytes(8, "little") + b"{}", "header too large"),
        ("text.safetensors", b"\x05\0\0\0\0\0\0\0hello", "invalid JSON"),
        ("deep.safetensors", (50_000).to_bytes(8, "little") + b"[" * 50_000, "invalid JSON"),
        ("list.safetensors", _safetensors([1]), "invalid JSON"),
        ("outside.safetensors", _f32([9], [0, 36]), "file not fully covered"),
        ("negative.safetensors", _f32([-2], [0, 8]), "invalid value"),
        ("before.safetensors", _f32([2], [-8, 0]), "invalid value"),
        ("shape.safetensors", _f32([3], [0, 8]), "invalid shape"),
        ("kind.safetensors", _f32([8], [0, 8], "F8_E4M3"), "'F8_E4M3'"),
        ("unknown.safetensors", _f32([2], [0, 8], "F3"), "unknown variant"),
        ("twice.safetensors", _twice(), "appears twice"),
        ("other.npz", b"PK", "must end in .ckpt or .safetensors"),
    ],
)
def test_hostile_files_are_refused_by_name(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)
    assert len(str(error.value)) < 1000  # whatever sizes the file claims


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.ckpt does not exist"):
        read_checkpoint(tmp_path / "gone.ckpt")
    (tmp_path / "folder.ckpt").mkdir()
    with pytest.raises(CheckpointError, match="can't be read"):
        read_checkpoint(tmp_path / "folder.ckpt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a.txt", {"w": np.ones(2)}), "must end in"),
        (("a.ckpt", {"w": np.ones(2)}, {"w": 1}), "also a weight"),
        (("a.ckpt", {"w": np.array(["x"])}), "'w' has the type"),
        (("a.ckpt", {"w": np.array([None])}), "'w' has the type"),
        (("a.ckpt", {}), "empty"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_written(tmp_path, arguments, words):
    name, *rest = arguments
    with pytest.raises(ConfigError, match=words):
        write_checkpoint(tmp_path / name, *rest)
    assert list(tmp_path.iterdir()) == []
