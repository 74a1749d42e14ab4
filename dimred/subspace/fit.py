"""``fit_basis`` computes the exact principal directions of a series of snapshots."""

import logging
import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from threadpoolctl import threadpool_limits

from dimred.checkpoints.layout import WeightLayout, layout_of
from dimred.checkpoints.matrix import BadSnapshotError, WeightMatrix
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import CheckpointError, DimredError, check_choice, check_number, check_type
from dimred.io.atomic import open_atomic, remove_leftovers
from dimred.subspace.basis import SubspaceBasis, check_out, load_basis
from dimred.subspace.gram_and_rows import gram_pass, rows_pass
from dimred.subspace.metadata import KINDS, Source, metadata_path, write_metadata
from dimred.subspace.spectrum import (
    TOLERANCE,
    TooFewDirectionsError,
    centre_gram,
    check_enough,
    deviation,
    principal_directions,
    repair_transform,
    snapshot_directions,
    spread_along,
)

_log = logging.getLogger(__name__)
_REPAIRS = 3


def fit_basis(
    series: CheckpointSeries | str | os.PathLike[str],
    n_components: int | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    kind: str = "pca",
    network: Any = None,
    layout: WeightLayout | None = None,
    overwrite: bool = False,
    skip_bad: bool = False,
) -> SubspaceBasis:
    """Fit an orthonormal basis of the subspace that the snapshots of a series span, and return it memory-mapped.

    With the snapshots as the rows of X (N x M) and their mean m: X - 1m' = U S P, where (X - 1m')(X - 1m')' = U S^2 U'
    is the N x N Gram matrix. Two passes over the columns are made, in float64: one forms the Gram matrix, the other
    writes P = S^-1 U' (X - 1m') as float32 and measures P P'. Rows of nearly collinear snapshots may not be orthonormal
    to float32 accuracy; they are then orthonormalised and written again.

    The rows go to ``out``, and mean, spectrum, layout and sources to an ``.h5`` file beside it, each whole or not at
    all.

    Args:
        series: the snapshots, or their folder.
        n_components: k; default 32, and for kind "snapshots" all N.
        out: the ``.npy`` file; by default the result lives in unnamed temporary files.
        kind: "pca", or "snapshots" for Gram-Schmidt of the last k raw snapshots (trainable averaging).
        network: a MindSpore cell whose trainable parameters become the columns.
        layout: the layout of the columns, in place of a network; for the default see ``WeightMatrix``.
        overwrite: whether to replace an ``out`` that exists.
        skip_bad: leave out damaged snapshots, with a warning in the log, instead of raising.

    Returns:
        The basis, with k orthonormal rows, float32 (k, M), memory-mapped.

    Raises:
        ConfigError: an argument is not allowed, or ``out`` exists and ``overwrite`` is not set.
        SeriesError: there are too few snapshots (a PCA needs k + 1, "snapshots" k), or they span too few directions.
        CheckpointError: a snapshot is missing, damaged, changed, or has numbers that are not finite.
        DimredError: ``out`` can't be written.
    """
    if not isinstance(series, CheckpointSeries):
        series = CheckpointSeries.open(series, argument="series")
    check_type("out", out, (str, os.PathLike, type(None)), "the path of a .npy file")
    check_choice("kind", kind, KINDS)
    if n_components is not None:
        check_number("n_components", n_components, at_least=1, whole=True)
    with ExitStack() as stack:
        if out is None:
            target = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dimred-")), "basis.npy")
        else:
            target = Path(out)
        check_out(target, overwrite=overwrite)
        matrix = None
        while True:
            try:
                matrix = matrix or WeightMatrix(series, layout_of(network, layout), skip_bad=skip_bad)
                k = n_components or (32 if kind == "pca" else matrix.shape[0])
                check_enough(matrix.shape[0], k, kind, series.directory)
                _make(target, matrix, kind, k, overwrite=overwrite)
                basis = load_basis(target, layout=matrix.layout, verify=False)
                return replace(basis, path=None) if out is None else basis  # the mappings keep its files alive
            except BadSnapshotError as bad:
                if matrix is None or not skip_bad:
                    raise CheckpointError(
                        f"{bad} Restore it, or leave it out with skip_bad=True.", settings=["skip_bad=True"]
                    ) from None
                _log.warning(f"left out: {bad}")
                matrix.leave_out(bad.row)
            except OSError as error:
                raise DimredError(f"Writing {target} failed: {error.strerror or error}.") from error


def _make(target: Path, matrix: WeightMatrix, kind: str, n_components: int, *, overwrite: bool) -> None:
    """Compute the basis and write both files, the metadata first.

    A kill between the two leaves metadata alone, or beside an earlier ``.npy`` with a different digest.
    """
    n_snapshots, n_weights = matrix.shape
    centred = kind == "pca"
    remove_leftovers(target.parent)
    with (
        threadpool_limits(1, user_api="blas"),  # a second thread would spin between two strips
        tempfile.TemporaryFile(dir=target.parent) as mean,
    ):
        _log.info(f"reading snapshots: {4e-9 * n_snapshots * n_weights:.2f} GB")
        gram, digests = gram_pass(matrix, centred=centred)
        for row, (entry, digest) in enumerate(zip(matrix.entries, digests, strict=True)):
            if entry.digest not in ("", digest):
                why = "the digest of its weights is not the one in the manifest"
                raise BadSnapshotError(row, f"{matrix.paths[row]} is not what was written: {why}.")
        centred_gram = centre_gram(gram)
        if centred:
            coefficients = principal_directions(centred_gram, n_components)
        else:
            coefficients = snapshot_directions(gram, n_components)
        with open_atomic(target) as rows:
            coefficients, off, digest = _write_rows(matrix, coefficients, rows, mean, centred=centred)
            singular_values = spread_along(centred_gram if centred else gram, coefficients)
            variance = singular_values**2 / max(n_snapshots - 1, 1)
            total = float(np.trace(centred_gram)) / max(n_snapshots - 1, 1)
            sources = zip(matrix.entries, digests, strict=True)
            fields = {
                "kind": kind,
                "mean": np.memmap(mean, np.float32, "r", shape=(n_weights,)),
                "singular_values": singular_values,
                "explained_variance": variance,
                "explained_variance_ratio": variance / total if total > 0 else variance * 0,
                "gram": centred_gram,
                "layout": matrix.layout,
                "snapshots": [Source(entry.file, entry.step, digest_of) for entry, digest_of in sources],
                "digest": digest,
                "deviation": off,
            }
            matrix.check_unchanged()  # otherwise the two passes may have read different weights
            check_out(target, overwrite=overwrite)  # another process may have written it meanwhile
            write_metadata(metadata_path(target), fields)


def _write_rows(
    matrix: WeightMatrix, coefficients: np.ndarray, rows: BinaryIO, mean: BinaryIO, *, centred: bool
) -> tuple[np.ndarray, float, str]:
    """Write the rows; if they are not orthonormal, correct the coefficients and write the rows again.

    Returns:
        The coefficients of the rows as written, float64 (k, N); the rows' deviation from orthonormal; their digest.
    """
    for _ in range(1 + _REPAIRS):
        _log.info(f"writing basis: {4e-9 * len(coefficients) * matrix.shape[1]:.2f} GB")
        row_gram, digest = rows_pass(matrix, coefficients, rows, mean, centred=centred)
        if deviation(row_gram) <= TOLERANCE:
            return coefficients, deviation(row_gram), digest
        transform = repair_transform(row_gram)
        if transform is None:
            break
        coefficients = transform @ coefficients
    rank = int(np.linalg.matrix_rank(row_gram, tol=0.5, hermitian=True))
    raise TooFewDirectionsError(rank, n_components=len(coefficients), n_snapshots=coefficients.shape[1])
