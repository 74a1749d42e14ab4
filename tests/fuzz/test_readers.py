"""Whatever a file contains, a reader returns what was written or raises an error of ours with a short text."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dimred.checkpoints.checkpoint_io import read_checkpoint, read_index, write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.errors import ConfigError, DimredError
from dimred.io.checksums import write_checksummed
from dimred.io.file_format import FileFormat
from dimred.launch.rank_table import read_rank_table
from dimred.run_files.metrics_file import read_metrics
from dimred.runs.records import MetricsLog
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.commands import CONFIGS, REPOSITORY
from tests.helpers.planted import random_walk, write_series

RANK_TABLE = REPOSITORY / "rank_tables" / "rank_table_8pcs.json"


@dataclass(frozen=True)
class Reader:
    """A valid file, how it is read, and how an attacker would repair its checksum."""

    name: str
    read: Callable[[Path], object]
    forge: Callable[[Path], None] | None = None

    @property
    def example(self) -> bytes:
        return _examples()[self.name]


@cache
def _examples() -> dict[str, bytes]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        series = write_series(folder / "s", random_walk(6, 40))
        fit_basis(series, 3, out=folder / "pca_mat.npy")
        arrays = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "half": np.ones(3, np.float16)}
        for suffix in ("ckpt", "safetensors"):
            write_checkpoint(folder / f"a.{suffix}", arrays, {"epoch": 3, "note": "text"})
        with MetricsLog(folder / "metrics.jsonl") as log:
            log.write(epoch=1, loss=0.5, seconds={"gradient": 1.0})
            log.write(epoch=2, loss=None, accuracy=0.25)
        files = {
            "a.ckpt": folder / "a.ckpt",
            "a.safetensors": folder / "a.safetensors",
            "manifest.json": folder / "s" / "manifest.json",
            "pca_mat.npy": folder / "pca_mat.npy",
            "pca_mat.h5": folder / "pca_mat.h5",
            "metrics.jsonl": folder / "metrics.jsonl",
            "rank_table.json": RANK_TABLE,
            "digits.yaml": CONFIGS / "digits.yaml",
        }
        return {name: file.read_bytes() for name, file in files.items()}


def _read_tensors(path: Path) -> None:
    read_index(path)
    read_index(path, verify=True)
    read_checkpoint(path)


def _drop_crc(path: Path) -> None:
    """Remove the checksum, which MindSpore's own files lack, so that only the parser stands guard."""
    raw = path.read_bytes()
    path.write_bytes(raw[:-17] if raw[-17:-10] == b"crc_num" else raw)


def _reseal_json(path: Path) -> None:
    try:
        content = json.loads(path.read_bytes())
        marks = [content.pop(key, None) for key in ("format", "version", "checksum")]
        write_checksummed(path, FileFormat(*marks[:2]), content)
    except (ValueError, AttributeError, TypeError, RecursionError, UnicodeError):
        return


def _read_manifest(path: Path) -> None:
    series = CheckpointSeries.open(path.parent)
    for file in series.paths:
        assert file.parent == path.parent, "a name leads out of the folder"


def _read_metadata(path: Path) -> None:
    rows = path.with_suffix(".npy")
    rows.write_bytes(_examples()["pca_mat.npy"])
    _use(load_basis(rows))


def _read_rows(path: Path) -> None:
    path.with_suffix(".h5").write_bytes(_examples()["pca_mat.h5"])
    _use(load_basis(path))


def _use(basis: SubspaceBasis) -> None:
    basis.project(np.zeros(basis.n_weights, np.float32))


READERS = [
    Reader("a.ckpt", _read_tensors, _drop_crc),
    Reader("a.safetensors", _read_tensors),
    Reader("manifest.json", _read_manifest, _reseal_json),
    Reader("pca_mat.npy", _read_rows),
    Reader("pca_mat.h5", _read_metadata),
    Reader("metrics.jsonl", read_metrics),
    Reader("rank_table.json", read_rank_table),
    Reader("digits.yaml", lambda path: (load_config(StageOneConfig, path), load_config(StageTwoConfig, path))),
]

AS_IT_IS = [pytest.param(reader, False, id=reader.name) for reader in READERS]
FORGED = [pytest.param(reader, True, id=f"{reader.name}, checksum put right") for reader in READERS if reader.forge]
PIECES = (
    b"\0",
    b"\xff" * 8,
    b"[" * 3000,
    b'{"a":' * 3000,
    b"9" * 5000,
    b"1e999",
    b"-1",
    b"NaN",
    b"../../x",
    b"\\ud800",
)


def read(reader: Reader, path: Path) -> None:
    said = ""
    try:
        reader.read(path)
    except DimredError as error:
        said = str(error)
    assert len(said) <= 2 * DimredError.LONGEST, "an error text dumps what it read"


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    """Draw some changes: how, where (a share of the length), and with what."""
    what = st.binary(min_size=1, max_size=8) | st.sampled_from(PIECES)
    how = st.sampled_from(["write", "insert", "cut", "repeat", "flip"])
    return draw(st.lists(st.tuples(how, st.floats(0, 1), what), min_size=1, max_size=4))


def changed(whole: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for how, share, what in changes:
        place = int(share * len(whole))
        before, after = whole[:place], whole[place:]
        whole = {
            "write": before + what + after[len(what) :],
            "insert": before + what + after,
            "cut": before if what[0] % 2 else before + after[len(what) :],
            "repeat": before + 3 * after[: what[0]] + after,
            "flip": before + bytes([after[0] ^ (1 << what[0] % 8)]) + after[1:] if after else before,
        }[how]
    return whole


@pytest.mark.parametrize(("reader", "forged"), AS_IT_IS + FORGED)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(changes=edits())
@example(changes=[("cut", 0.0, b"\1")])
def test_a_changed_file_is_read_or_refused_in_our_own_words(reader, forged, changes, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / reader.name
    path.write_bytes(changed(reader.example, changes))
    if forged:
        reader.forge(path)
    read(reader, path)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nseed: &b [*a, *a]\n",
        "a: &a {<<: *a}\n",
        'seed: !!int ""\n',
        "seed: !!bool x\n",
        "seed: !!timestamp x\n",
        "seed: 0001-01-01 00:00:00 +23:59\n",
        "seed: 0x" + "f" * 20_000 + "\n",
        "? [a]\n: 1\n",
        "!!python/object/apply:os.system ['true']\n",
        "seed: " + "x" * 90_000,
        "#" * 200_000,
    ],
)
def test_hostile_configurations_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(DimredError) as refused:
        load_config(StageOneConfig, path)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("text", ["[" * 600, "{a: " * 600, "- " * 12_000])
def test_a_deeply_nested_configuration_is_refused_at_once(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_config(StageOneConfig, path)
