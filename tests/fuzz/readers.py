"""Every reader of files: what it reads, in a small whole example, and the call."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dimred.checkpoints.checkpoint_io import read_checkpoint, read_index, write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.io.checksummed_json import write_checksummed
from dimred.io.metrics_file import read_metrics
from dimred.launch.rank_table import read_rank_table
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.trainer.metrics import MetricsLog
from tests.helpers.planted import random_walk, write_series

CONFIGS = Path(__file__).parents[2] / "pipelines" / "configs"
RANK_TABLE = CONFIGS.parents[1] / "rank_tables" / "rank_table_8pcs.json"


@dataclass(frozen=True)
class Reader:
    """A file as it should be, how it is read, and how somebody who means harm would put its checksum right again."""

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
            "stage_1.yaml": CONFIGS / "digits_stage_1.yaml",
            "stage_2.yaml": CONFIGS / "digits_stage_2.yaml",
        }
        return {name: file.read_bytes() for name, file in files.items()}


def _read_tensors(path: Path) -> None:
    read_index(path)
    read_index(path, verify=True)
    read_checkpoint(path)


def _drop_crc(path: Path) -> None:
    """MindSpore's own files have no checksum: then the parser is all there is."""
    raw = path.read_bytes()
    path.write_bytes(raw[:-17] if raw[-17:-10] == b"crc_num" else raw)


def _reseal_json(path: Path) -> None:
    try:
        content = json.loads(path.read_bytes())
        content.pop("checksum", None)
        write_checksummed(path, content)
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
    Reader("stage_1.yaml", lambda path: load_config(StageOneConfig, path)),
    Reader("stage_2.yaml", lambda path: load_config(StageTwoConfig, path)),
]
