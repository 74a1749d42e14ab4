"""The file ``pca_mat.h5``, which describes the rows in the ``pca_mat.npy`` beside it.

The first 512 bytes, which HDF5 leaves to its users (the "user block"), hold a checksum of the rest. It is compared
before the HDF5 library reads any of it.

HDF5 2.0 loops endlessly in some forged heaps: the global one, where texts of variable length stand, and the local ones
of groups in the format before HDF5 1.10. So the one text here is of fixed length, and the format is that of HDF5 1.10.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dimred.checkpoints.layout import WeightLayout
from dimred.errors import BasisMismatchError
from dimred.io.atomic import open_atomic

KINDS = ("pca", "snapshots")
CHECKSUM_BYTES = 512
_PER_ROW = ("singular_values", "explained_variance", "explained_variance_ratio")


@dataclass(frozen=True)
class Source:
    """A snapshot that a basis was made from: its file's name, the updates before it, the digest of its weights."""

    file: str
    step: int
    digest: str


def metadata_path(npy: Path) -> Path:
    """Return ``pca_mat.h5`` for ``pca_mat.npy``."""
    return npy.with_suffix(".h5")


def write_metadata(path: Path, fields: Mapping[str, Any]) -> None:
    """Write the ``.h5`` file, whole or not at all, from the fields of a ``SubspaceBasis`` by name.

    It holds a data set for each array, and ``about``, the rest as JSON.
    """
    about = {
        "kind": fields["kind"],
        "digest": fields["digest"],
        "deviation": fields["deviation"],
        "fingerprint": fields["layout"].fingerprint,
        "layout": fields["layout"].to_json(),
        "snapshots": [astuple(source) for source in fields["snapshots"]],
    }
    with open_atomic(path) as target:
        with h5py.File(target.name, "w", userblock_size=CHECKSUM_BYTES, libver=("v110", "v110")) as file:
            file["about"] = np.bytes_(json.dumps(about))
            for name in ("mean", *_PER_ROW, "gram"):
                file[name] = fields[name]
        target.write(checksum_of(Path(target.name)))


def checksum_of(path: Path) -> bytes:
    """Return what the first ``CHECKSUM_BYTES`` of a ``.h5`` file must be, from what follows them."""
    with path.open("rb") as file:
        file.seek(CHECKSUM_BYTES)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"dimred: SHA-256 of what follows is {digest}\n".encode().ljust(CHECKSUM_BYTES, b"\0")


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the fields of a ``SubspaceBasis`` that stand in the ``.h5`` file, by name; the mean is memory-mapped.

    Raises:
        BasisMismatchError: it is no such file, damaged, or contradicts itself.
    """
    try:
        with path.open("rb") as raw:
            if raw.read(CHECKSUM_BYTES) != checksum_of(path):
                raise ValueError("it is not what was written: its checksum is another")
            if raw.read(9)[8:] != b"\3":  # the version, after the signature
                raise ValueError("it is not in the format of HDF5 1.10")
        with h5py.File(path, "r") as file:
            return _read(path, file)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise BasisMismatchError(
            f"{path} can't be used: {type(error).__name__}: {error}. Make the basis again with dimred pca."
        ) from None


def _read(path: Path, file: Any) -> dict[str, Any]:
    about = json.loads(_checked(path, file["about"], "S", ())[()])
    layout = WeightLayout.from_json(about["layout"])
    if layout.fingerprint != about["fingerprint"] or about["kind"] not in KINDS:
        raise ValueError("its layout or its kind was changed")
    snapshots = tuple(Source(str(name), int(step), str(digest)) for name, step, digest in about["snapshots"])
    n_components = file["singular_values"].size
    shapes = dict.fromkeys(_PER_ROW, (n_components,)) | {"gram": (len(snapshots), len(snapshots))}
    mean = _checked(path, file["mean"], "f", (layout.size,))
    if mean.dtype != np.dtype("<f4") or mean.id.get_offset() is None:
        raise ValueError("the mean is not stored in one piece as float32")
    return {
        "kind": about["kind"],
        "digest": str(about["digest"]),
        "deviation": float(about["deviation"]),
        "layout": layout,
        "snapshots": snapshots,
        "mean": np.memmap(path, "<f4", "r", mean.id.get_offset(), mean.shape),
        **{name: _checked(path, file[name], "f", shape)[()].astype(np.float64) for name, shape in shapes.items()},
    }


def _checked(path: Path, dataset: Any, kind: str, shape: tuple[int, ...]) -> Any:
    """Return a data set that can be read safely: of this kind and shape, and with all its bytes in the file."""
    if dataset.dtype.kind != kind or dataset.shape != shape:
        raise ValueError(f"{dataset.name} is {dataset.dtype} {dataset.shape}, not {kind!r} {shape}")
    if not dataset.id.get_storage_size() == dataset.nbytes <= path.stat().st_size:
        raise ValueError(f"{dataset.name} claims {dataset.nbytes} bytes, and has {dataset.id.get_storage_size()}")
    return dataset
