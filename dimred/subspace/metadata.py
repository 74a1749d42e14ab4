"""Read and write ``pca_mat.h5``, which describes the rows in ``pca_mat.npy``.

The first 512 bytes, which HDF5 leaves to its users (the "user block"), hold a checksum of the rest. It is compared
before the HDF5 library reads anything, because a damaged file can keep that library busy for ever.

The library's own lock is not used: a file appears only when it is complete, and not every file system has locks.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dimred.checkpoints.layout import WeightLayout
from dimred.errors import BasisMismatchError, shown
from dimred.io.atomic import open_atomic
from dimred.io.file_format import BASIS
from dimred.io.regular_file import open_regular
from dimred.io.system import anonymous_file

KINDS = ("pca", "snapshots")
CHECKSUM_BYTES = 512
_PLAIN = ("kind", "digest", "deviation")
_PER_ROW = ("singular_values", "explained_variance", "explained_variance_ratio")


@dataclass(frozen=True)
class Source:
    """A snapshot that a basis was made from.

    Attributes:
        file: name of its file.
        step: number of updates before it.
        digest: ``vector_digest`` of its weights.
    """

    file: str
    step: int
    digest: str


def metadata_path(npy: Path) -> Path:
    """Return the path of the metadata beside a basis, such as ``pca_mat.h5`` for ``pca_mat.npy``."""
    return npy.with_suffix(".h5")


def write_metadata(path: Path, fields: Mapping[str, Any]) -> None:
    """Write the ``.h5`` file, whole or not at all, from the fields of a ``SubspaceBasis`` by name.

    The file holds a data set for each array, and the rest as JSON in ``about``.

    Args:
        path: the file; an existing one is replaced.
        fields: every field of a ``SubspaceBasis`` but ``components`` and ``path``; none of them is None.

    Raises:
        OSError: the file can't be written.
    """
    about = {
        **{name: fields[name] for name in _PLAIN},
        "fingerprint": fields["layout"].fingerprint,
        "layout": fields["layout"].to_json(),
        "snapshots": [astuple(source) for source in fields["snapshots"]],
    }
    mean: np.ndarray = fields["mean"]
    # HDF5 writes to memory: after a write that fails, it may crash the process. The mean has a place there but is never
    # written, so that it takes no memory.
    with open_atomic(path) as target, anonymous_file() as image:
        with h5py.File(image, "w", userblock_size=CHECKSUM_BYTES) as file:
            file["about"] = np.bytes_(json.dumps(BASIS.marked(about)))
            for name in (*_PER_ROW, "gram"):
                file[name] = fields[name]
            offset = _make_place(file, "mean", mean)
        image.seek(0)
        target.write(image.read(offset))
        target.write(mean.data)
        image.seek(mean.nbytes, os.SEEK_CUR)
        target.write(image.read())
        target.flush()
        checksum = checksum_of(Path(target.name))
        target.seek(0)
        target.write(checksum)


def _make_place(file: h5py.File, name: str, array: np.ndarray) -> int:
    """Make a data set without writing it, and return the offset of its bytes in the file."""
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    options.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    options.set_obj_track_times(False)  # equal bases have equal bytes
    space = h5py.h5s.create_simple(array.shape)
    return int(h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(array.dtype), space, options).get_offset())


def checksum_of(path: Path) -> bytes:
    """Compute the first ``CHECKSUM_BYTES`` bytes that a ``.h5`` file must have, from the SHA-256 of the rest."""
    with open_regular(path) as file:
        file.seek(CHECKSUM_BYTES)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"dimred: SHA-256 of what follows is {digest}\n".encode().ljust(CHECKSUM_BYTES, b"\0")


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the fields of a ``SubspaceBasis`` from the ``.h5`` file, by name; the mean is memory-mapped.

    Raises:
        BasisMismatchError: the file can't be read, is of another kind, or was changed after it was written.
    """
    try:
        with open_regular(path) as raw:
            if raw.read(CHECKSUM_BYTES) != checksum_of(path):
                raise ValueError("its checksum does not match its content")
        with h5py.File(path, "r", locking=False) as file:
            about = BASIS.content_of(json.loads(file["about"][()]))
            mean = file["mean"]
            per_row = {name: file[name][()] for name in _PER_ROW}
            for name, values in {"deviation": about["deviation"], **per_row}.items():
                if not (np.isfinite(values) & (np.asarray(values) >= 0)).all():
                    raise ValueError(f"{name} is {shown(values)}; it must be finite and at least 0")
            return {
                **{name: about[name] for name in _PLAIN},
                "layout": WeightLayout.from_json(about["layout"]),
                "snapshots": tuple(Source(*source) for source in about["snapshots"]),
                "mean": np.memmap(path, "<f4", "r", mean.id.get_offset(), mean.shape),
                "gram": file["gram"][()],
                **per_row,
            }
    except (OSError, ValueError) as error:
        raise BasisMismatchError(
            f"{path} can't be used ({type(error).__name__}: {error}). Make the basis again with dimred pca."
        ) from None
