"""``SubspaceBasis``: k orthonormal directions in the space of M weights, with the snapshots they were made from."""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dimred.checkpoints.layout import CHUNK, WeightLayout, layout_of, vector_digest
from dimred.errors import BasisMismatchError, ConfigError, check_type
from dimred.io.regular_file import check_regular
from dimred.subspace.foreign import as_float32, check_orthonormal
from dimred.subspace.metadata import Source, metadata_path, read_metadata

_log = logging.getLogger(__name__)

_REMEDY = (
    "Use the basis of this network's own snapshots: dimred pca --ckpt-dir DIR. If only the order differs, as in "
    "MindSpore's .safetensors files, add --names-from with a .ckpt file of the network."
)


@dataclass(frozen=True, eq=False, repr=False)
class SubspaceBasis:
    """The basis P of a subspace of weight space, with orthonormal rows.

    Everything but the rows is read from ``pca_mat.h5``; without that file it is None, or empty (``snapshots``).

    Attributes:
        components: float32 (k, M), memory-mapped; for "pca", row i is the direction of the i-th largest variance.
        path: the file that the rows were read from; None for a basis that was fitted without one.
        kind: "pca", or "snapshots" for the orthonormal basis of the raw snapshots.
        mean: the snapshots' mean, float32 (M,), memory-mapped.
        singular_values: the norms of the centred snapshots' coordinates along each row, float64 (k,).
        explained_variance: the variance along each row, float64 (k,): singular_values^2 / (N - 1).
        explained_variance_ratio: the fraction of the snapshots' variance along each row, float64 (k,).
        gram: the inner products of the N snapshots about their mean, float64 (N, N).
        layout: the layout of the weights, which says which weight each column is.
        snapshots: the snapshots that it was made from.
        digest: digest of the rows, which shows that the two files belong together; None if the rows were never hashed.
        deviation: max |P P' - I|, measured on these rows.
    """

    components: np.ndarray
    path: Path | None = None
    kind: str | None = None
    mean: np.ndarray | None = None
    singular_values: np.ndarray | None = None
    explained_variance: np.ndarray | None = None
    explained_variance_ratio: np.ndarray | None = None
    gram: np.ndarray | None = None
    layout: WeightLayout | None = None
    snapshots: tuple[Source, ...] = ()
    digest: str | None = None
    deviation: float | None = None

    def __repr__(self) -> str:
        kind = "" if self.kind is None else f", kind={self.kind!r}"
        made_from = f", made from {len(self.snapshots)} snapshots" if self.snapshots else ""
        where = "" if self.path is None else f", path={str(self.path)!r}"
        return f"<SubspaceBasis: {self.n_components} directions of {self.n_weights:,} weights{made_from}{kind}{where}>"

    @property
    def n_components(self) -> int:
        """Return k, the dimension of the subspace."""
        return int(self.components.shape[0])

    @property
    def n_weights(self) -> int:
        """Return M, the dimension of weight space."""
        return int(self.components.shape[1])

    def in_short(self, n_components: int) -> dict[str, int | float | str | None]:
        """Summarise the basis for a search that uses its first rows.

        Args:
            n_components: the number of rows that are used.

        Returns:
            ``n_snapshots``; ``n_components`` as given; ``n_weights``; ``explained_variance``, the fraction of the
            snapshots' variance along these rows (None if it is unknown); and ``digest``.
        """
        ratio = self.explained_variance_ratio
        return {
            "n_snapshots": len(self.snapshots),
            "n_components": n_components,
            "n_weights": self.n_weights,
            "explained_variance": None if ratio is None else float(np.sum(ratio[:n_components])),
            "digest": self.digest,
        }

    def project(self, weight_vector: np.ndarray) -> np.ndarray:
        """Return the coordinates P v, float64 (k,), of a vector v (M,); BasisMismatchError for another shape."""
        weight_vector = np.asarray(weight_vector)
        if weight_vector.shape != (self.n_weights,):
            raise BasisMismatchError(
                f"weight_vector has shape {weight_vector.shape}; this basis needs ({self.n_weights},).",
                argument="weight_vector",
            )
        coordinates = np.zeros(self.n_components)
        for start in range(0, self.n_weights, CHUNK):
            columns = slice(start, start + CHUNK)
            coordinates += self.components[:, columns].astype(np.float64) @ weight_vector[columns]
        return coordinates

    def back_project(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the vector P' c, float32 (M,), of coordinates c (k,); BasisMismatchError for another shape."""
        coordinates = np.asarray(coordinates)
        if coordinates.shape != (self.n_components,):
            raise BasisMismatchError(
                f"coordinates has shape {coordinates.shape}; this basis needs ({self.n_components},).",
                argument="coordinates",
            )
        vector = np.empty(self.n_weights, np.float32)
        for start in range(0, self.n_weights, CHUNK):
            columns = slice(start, start + CHUNK)
            vector[columns] = coordinates @ self.components[:, columns].astype(np.float64)
        return vector

    def check(self, layout: WeightLayout) -> None:
        """Check that the columns are the weights of ``layout``, in its order.

        For a bare ``.npy``, only the number of columns can be checked. If a program made the basis from an array, no
        file vouches for its rows, so this also checks that they are orthonormal.

        Raises:
            BasisMismatchError: the columns are other weights, or the rows are not orthonormal; the message explains the
                first difference.
        """
        check_type("layout", layout, WeightLayout, "a dimred.WeightLayout")
        title = self.path or "The basis"
        if self.layout is not None and self.layout != layout:
            difference = self.layout.first_difference(layout, "the basis", "the network")
            raise BasisMismatchError(f"{title} was made for another network: {difference}. {_REMEDY}")
        if self.n_weights != layout.size:
            raise BasisMismatchError(
                f"{title} has {self.n_weights:,} columns; the network has {layout.size:,} trainable weights. {_REMEDY}"
            )
        if self.path is None and self.digest is None:
            check_orthonormal(self.components, title)


def check_out(path: Path, *, overwrite: bool) -> None:
    """Check that a basis can be written to ``path``, and replaces no other result unless ``overwrite``.

    Raises:
        ConfigError: it does not end in ``.npy``, its folder does not exist, or a result would be replaced.
    """
    if path.suffix != ".npy":
        raise ConfigError(f"out is {str(path)!r}; the name of a basis must end in .npy.", argument="out")
    if not path.parent.is_dir():
        raise ConfigError(
            f"out is {str(path)!r}, but there is no folder {str(path.parent)!r}; make it first.", argument="out"
        )
    there = next((file for file in (path, metadata_path(path)) if file.exists()), None)
    if there is not None and not overwrite:
        _check_replaced(path, there)


def _check_replaced(path: Path, there: Path) -> None:
    """Raise ConfigError unless ``there`` is metadata without rows, as a killed run leaves it."""
    if there != path:
        with suppress(BasisMismatchError):
            read_metadata(there)
            return
    raise ConfigError(
        f"out is {str(path)!r}, but {str(there)!r} exists already; give another name, or overwrite=True to replace it",
        argument="out",
        settings=["overwrite=True"],
    )


def load_basis(
    path: str | os.PathLike[str],
    network: Any = None,
    layout: WeightLayout | None = None,
    *,
    verify: bool = True,
) -> SubspaceBasis:
    """Open a basis, check it, and return it memory-mapped.

    If ``pca_mat.h5`` is beside the file, the rows must be those that it describes, and its layout must be the
    network's. A bare ``.npy`` from elsewhere, such as MindSpore's boost module, in float32 or float64, must have
    orthonormal rows, and as many columns as the network has weights; a warning says what can't be checked.

    Args:
        path: the ``.npy`` file, or the ``.h5`` file beside it.
        network: a MindSpore cell whose trainable parameters the columns must be.
        layout: the layout of the columns, in place of a network.
        verify: whether to read and check all rows; further ranks that open the same file may leave this to the first.

    Returns:
        The basis, with k orthonormal rows, float32 (k, M).

    Raises:
        ConfigError: ``path``, ``network`` or ``layout`` has the wrong type.
        BasisMismatchError: a file is missing, truncated or changed, the rows are not finite or not orthonormal, or the
            basis belongs to another network; the message explains the first mismatch.
    """
    check_type("path", path, (str, os.PathLike), "the path of a .npy file")
    network_layout = layout_of(network, layout)
    source = Path(path)
    if source.suffix == ".h5":
        source = source.with_suffix(".npy")
    rows = _open_npy(source)
    beside = metadata_path(source)
    fields = read_metadata(beside) if beside.exists() else {}
    if rows.dtype != np.float32 or not rows.flags.c_contiguous:
        rows = as_float32(rows)
    basis = SubspaceBasis(rows, source, **fields)
    if network_layout:
        basis.check(network_layout)
    digest = vector_digest(rows) if verify else basis.digest
    if digest != basis.digest:
        check_orthonormal(rows, source)
        if fields:
            raise BasisMismatchError(
                f"{source} is not the file that {beside.name} beside it describes (their digests differ): it was "
                "changed, or its writing was interrupted. Make it again with dimred pca --force."
            )
    if not fields:
        _log.warning(
            f"{source} has no {beside.name} beside it, so dimred can't check that its columns are this network's "
            "weights in this order, or which snapshots it came from."
        )
    return replace(basis, digest=digest)


def _open_npy(path: Path) -> np.ndarray:
    """Memory-map the rows in a ``.npy`` file for reading; nothing is unpickled."""
    try:
        check_regular(path)
        array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise BasisMismatchError(f"{path} does not exist. Name the basis that dimred pca wrote.") from None
    except Exception as error:  # whatever a damaged header makes NumPy raise
        raise BasisMismatchError(
            f"{path} is not a whole .npy file ({type(error).__name__}: {error}). Make it again with dimred pca."
        ) from None
    if array.ndim != 2 or array.dtype not in (np.dtype("<f4"), np.dtype("<f8")) or 0 in array.shape:
        raise BasisMismatchError(
            f"{path} holds {array.dtype} {array.shape}; a basis is float32 or float64 (components, weights)."
        )
    return array
