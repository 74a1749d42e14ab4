"""The two files of a basis: ``pca_mat.npy`` with the rows, and ``pca_mat.h5`` beside it with everything else.

The first 512 bytes of the ``.h5`` file hold a checksum of the rest, which is compared before the HDF5 library reads any
of it. The format leaves these bytes to its users (the "user block"), and every reader of HDF5 skips them.

HDF5 2.0 never comes back from some forged heaps: the global one, where texts of variable length stand, and the local
ones of groups in the format before HDF5 1.10. So texts are of fixed length here, and the format is that of HDF5 1.10,
which compares checksums of its own.
"""

import hashlib
import json
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dimred.errors import BasisMismatchError
from dimred.files.atomic import open_atomic
from dimred.weights.layout import WeightLayout

_FORMAT, _VERSION = "dimred basis", 3
KINDS = ("pca", "snapshots")
CHECKSUM_BYTES = 512
_PER_ROW = ("singular_values", "explained_variance", "explained_variance_ratio")
_ATTRIBUTES = {"kind": "kind", "digest": "rows_digest", "deviation": "orthonormality_deviation"}  # as they are stored
_COPIED = 1 << 20  # numbers of the mean that are copied at once
# What NumPy's reader of a header raises for one that is damaged; found by fuzzing it.
_HEADER_ERRORS = (
    ValueError, EOFError, AttributeError, SyntaxError, MemoryError, OverflowError, TypeError, KeyError, RecursionError,
    tokenize.TokenError,
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A snapshot that a basis was made from: its file's name, the updates before it, the digest of its weights."""

    file: str
    step: int
    digest: str


def metadata_path(npy: Path) -> Path:
    """``pca_mat.h5`` for ``pca_mat.npy``."""
    return npy.with_suffix(".h5")


def write_metadata(path: Path, fields: Mapping[str, Any]) -> None:
    """Write the ``.h5`` file, whole or not at all, from the fields of a ``SubspaceBasis`` by name."""
    with open_atomic(path) as target:
        with h5py.File(target.name, "w", userblock_size=CHECKSUM_BYTES, libver=("v110", "v110")) as file:
            attributes = {stored: fields[name] for name, stored in _ATTRIBUTES.items()}
            attributes |= {"format": _FORMAT, "layout_fingerprint": fields["layout"].fingerprint, "version": _VERSION}
            for name, value in attributes.items():
                file.attrs[name] = _fixed(value)
            mean = file.create_dataset("mean", fields["mean"].shape, "<f4")
            for start in range(0, mean.size, _COPIED):
                mean[start : start + _COPIED] = fields["mean"][start : start + _COPIED]
            for name in (*_PER_ROW, "gram"):
                file[name] = fields[name]
            file["layout"] = _fixed(json.dumps(fields["layout"].to_json()))
            snapshots = file.create_group("snapshots")  # a group that is made on the way would have the time in it
            for name in ("file", "step", "digest"):
                snapshots[name] = np.array([_fixed(getattr(source, name)) for source in fields["snapshots"]])
        target.write(checksum_of(Path(target.name)))


def _fixed(value: Any) -> Any:
    """A text as HDF5 stores it in fixed length; numbers as they are."""
    return np.bytes_(value.encode()) if isinstance(value, str) else value


def checksum_of(path: Path) -> bytes:
    """What the first ``CHECKSUM_BYTES`` of a ``.h5`` file must be, from what follows them."""
    with path.open("rb") as file:
        file.seek(CHECKSUM_BYTES)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"dimred seal: SHA-256 of what follows is {digest}\n".encode().ljust(CHECKSUM_BYTES, b"\0")


def read_metadata(path: Path) -> dict[str, Any]:
    """The fields of a ``SubspaceBasis`` that stand in the ``.h5`` file, checked, by name; the mean is memory-mapped.

    Raises:
        BasisMismatchError: it is no such file, damaged, or contradicts itself.
    """
    try:
        with path.open("rb") as raw:
            if raw.read(CHECKSUM_BYTES) != checksum_of(path):
                raise ValueError("it is not what was written: its checksum is another")
            if raw.read(9)[8:] != b"\3":  # after the signature of 8 bytes
                raise ValueError("it is not in the format of HDF5 1.10, as files of an earlier version are not")
        with h5py.File(path, "r") as file:
            return _read(path, file)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise BasisMismatchError(
            f"{path} can't be used: {type(error).__name__}: {error}. Make the basis again with dimred pca."
        ) from None


def _read(path: Path, file: Any) -> dict[str, Any]:
    form, version = _attribute(file, "format"), _attribute(file, "version")
    if form != _FORMAT or version != _VERSION:
        raise ValueError(f"it says it is {form!r} version {version!r}")
    _check_stored(path, "layout", file["layout"])
    layout = WeightLayout.from_json(json.loads(file["layout"][()].decode()))
    n_snapshots, n_components = file["gram"].shape[0], file["singular_values"].shape[0]
    expected = {"mean": (layout.size,), "gram": (n_snapshots, n_snapshots)} | dict.fromkeys(_PER_ROW, (n_components,))
    expected |= {f"snapshots/{name}": (n_snapshots,) for name in ("file", "step", "digest")}
    for name, shape in expected.items():
        if file[name].shape != shape:
            raise ValueError(f"{name} has shape {file[name].shape} instead of {shape}")
        _check_stored(path, name, file[name])
    found = {name: _attribute(file, stored) for name, stored in _ATTRIBUTES.items()}
    if layout.fingerprint != _attribute(file, "layout_fingerprint") or found["kind"] not in KINDS:
        raise ValueError("its layout or its kind was changed")
    files, digests = ([text.decode() for text in file[f"snapshots/{name}"][()].tolist()] for name in ("file", "digest"))
    snapshots = zip(files, file["snapshots/step"][()].tolist(), digests, strict=True)
    return (
        found
        | {name: _floats(file[name]) for name in (*_PER_ROW, "gram")}
        | {
            "digest": str(found["digest"]),
            "deviation": float(found["deviation"]),
            "layout": layout,
            "mean": _mapped(path, file["mean"]),
            "snapshots": tuple(Source(*entry) for entry in snapshots),
        }
    )


def _check_fixed(name: str, dtype: np.dtype) -> None:
    if dtype.hasobject:
        raise ValueError(f"{name} is of variable length, as in files of an earlier version")


def _attribute(file: Any, name: str) -> Any:
    _check_fixed(name, file.attrs.get_id(name).dtype)
    value = file.attrs[name]
    return value.decode() if isinstance(value, bytes) else value


def _check_stored(path: Path, name: str, dataset: Any) -> None:
    """Whether a data set can be read: nothing of variable length, and no claimed size without bytes behind it."""
    _check_fixed(name, dataset.dtype)
    stored = dataset.id.get_storage_size()
    if stored == 0 or dataset.nbytes > path.stat().st_size:
        raise ValueError(f"{name} claims {dataset.nbytes} bytes, and has {stored}")


def _floats(dataset: Any) -> np.ndarray:
    values = np.asarray(dataset[()], np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{dataset.name} has numbers that are not finite")
    return values


def _mapped(path: Path, dataset: Any) -> np.ndarray:
    offset = dataset.id.get_offset()
    if offset is None or dataset.dtype != np.dtype("<f4"):
        raise ValueError("the mean is not stored in one piece as float32")
    return np.memmap(path, "<f4", "r", offset, dataset.shape)


def open_npy(path: Path) -> np.ndarray:
    """The rows in a ``.npy`` file, memory-mapped for reading; nothing is unpickled.

    Raises:
        BasisMismatchError: no such file, not a ``.npy`` file, truncated, or not two-dimensional float32 or float64.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        expected = array.offset + array.nbytes
    except FileNotFoundError:
        raise BasisMismatchError(f"{path} is not found. Name the basis that dimred pca wrote.") from None
    except (OSError, *_HEADER_ERRORS) as error:
        raise BasisMismatchError(
            f"{path} is not a whole .npy file ({type(error).__name__}: {error}). Make it again with dimred pca."
        ) from None
    if array.ndim != 2 or array.dtype not in (np.dtype("<f4"), np.dtype("<f8")) or 0 in array.shape:
        raise BasisMismatchError(
            f"{path} holds {array.dtype} {array.shape}; a basis is float32 or float64 (components, weights)."
        )
    if path.stat().st_size != expected:
        raise BasisMismatchError(
            f"{path} has {path.stat().st_size} bytes; its header asks for {expected}. Make it again with dimred pca."
        )
    return array
