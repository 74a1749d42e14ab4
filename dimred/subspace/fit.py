"""fit_basis computes the exact principal directions of a series of snapshots within a memory limit."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from threadpoolctl import threadpool_limits

from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.matrix import WeightMatrix
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import BasisMismatchError, ConfigError, DimredError, SeriesError, check_number
from dimred.io.atomic import open_atomic, remove_leftovers
from dimred.subspace.basis import SubspaceBasis, check_out, load_basis
from dimred.subspace.gram_and_rows import BadSnapshotError, Progress, check_memory, gram_pass, rows_pass, working_bytes
from dimred.subspace.metadata import KINDS, Source, metadata_path, write_metadata
from dimred.subspace.spectrum import (
    TOLERANCE,
    centre_gram,
    check_enough,
    deviation,
    principal_directions,
    repair_transform,
    snapshot_directions,
    spread_along,
)

DEFAULT_MEMORY = 1_000_000_000  # bytes
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
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> SubspaceBasis:
    """Fit the orthonormal basis of the subspace in which the snapshots of a series lie.

    With the snapshots as the rows of X (N x M) and their mean m: X - 1m' = U S P, where (X - 1m')(X - 1m')' = U S^2 U'
    is the N x N Gram matrix. Two passes over the columns, in float64: one forms the Gram matrix, one writes
    P = S^-1 U' (X - 1m') as float32 and measures P P'. Rows of nearly collinear snapshots may not be orthonormal to
    float32 accuracy; they are then orthonormalised and written again.

    The result is ``out`` (rows, float32) and beside it ``.h5`` (mean, spectrum, layout, sources), each written whole or
    not at all. Where ``out`` is this very basis already, nothing is written.

    Args:
        series: the snapshots, or their folder.
        n_components: k; default 32, and for kind "snapshots" all N.
        out: the ``.npy`` file; default none, the result then lives in unnamed temporary files.
        kind: "pca", or "snapshots" for Gram-Schmidt of the last k raw snapshots (trainable averaging).
        network: a MindSpore cell whose trainable parameters make the columns.
        layout: the same, without a network; default the series' manifest, or what its first file suggests.
        overwrite: replace an ``out`` that is another basis.
        skip_bad: leave out damaged snapshots instead of raising.
        max_memory: bytes this call may take, memory-mapped pages aside.
        progress: called often, from several threads.
        note: called with what a person should know, such as what is left out. Without it, snapshots left out by
            ``skip_bad`` are a warning.

    Raises:
        ConfigError: an argument is not allowed, ``out`` exists, or memory or disk space do not suffice.
        SeriesError: too few snapshots (k + 1 are needed, one goes into the mean), or they span fewer than k directions.
        CheckpointError: a snapshot is missing, damaged, changed, or has numbers that are not finite.
        DimredError: ``out`` can't be written.
    """
    if isinstance(series, str | os.PathLike):
        series = CheckpointSeries.open(series)
    if out is None:
        with tempfile.TemporaryDirectory(prefix="dimred-") as folder:
            made = fit_basis(
                series, n_components, out=Path(folder) / "basis.npy", kind=kind, network=network, layout=layout,
                skip_bad=skip_bad, max_memory=max_memory, progress=progress, note=note,
            )  # fmt: skip
            return replace(made, path=None)  # the mappings hold the files after their names are gone
    target = Path(out)
    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r}; give one of {', '.join(KINDS)}.")
    if n_components is not None:
        check_number("n_components", n_components, at_least=1, whole=True)
    wanted = layout if layout or network is None else WeightLayout.from_network(network)
    matrix = WeightMatrix(series, wanted, skip_bad=skip_bad)
    tell = note or (lambda text: None)
    if matrix.ignored:
        first = ", ".join(repr(name) for name in matrix.ignored[:2])
        tell(f"{len(matrix.ignored)} entries of each snapshot are not weights and are left out: {first} and the like.")
    if n_components is None:
        n_components = 32 if kind == "pca" else matrix.shape[0]
    while True:
        check_enough(matrix.shape[0], n_components, kind, matrix.directory, len(matrix.skipped))
        if _is_made(target, matrix, kind, n_components):
            tell(f"{target} is this very basis already; nothing to do.")
            return load_basis(target, layout=matrix.layout, verify=False)
        check_out(target, overwrite=overwrite)
        try:
            report = progress or (lambda phase, done, total: None)
            _make(target, matrix, kind, n_components, max_memory, report, overwrite=overwrite)
        except BadSnapshotError as bad:
            if not skip_bad:
                raise
            matrix = matrix.without(bad.row, bad.reason)
        except OSError as error:
            raise DimredError(f"Writing {target} failed: {error.strerror or error}.") from error
        else:
            for reason in matrix.skipped:
                (note or warnings.warn)(f"Left out: {reason}")
            return load_basis(target, layout=matrix.layout, verify=False)


def _is_made(target: Path, matrix: WeightMatrix, kind: str, n_components: int) -> bool:
    """Return whether ``target`` is the basis of these snapshots, undamaged.

    Only a series with a manifest can tell: without one the digests of the snapshots are not known before they are read.
    """
    if not target.exists() or not metadata_path(target).exists():
        return False
    try:
        basis = load_basis(target, layout=matrix.layout, verify=False)
        made_from = [(source.step, source.digest) for source in basis.snapshots]
        wanted = [(entry.step, entry.digest) for entry in matrix.entries]
        same = basis.kind == kind and made_from == wanted and basis.n_components == n_components
        if same:
            load_basis(target)  # reads all rows
    except BasisMismatchError:
        return False
    return same


def _make(
    target: Path,
    matrix: WeightMatrix,
    kind: str,
    n_components: int,
    max_memory: int,
    progress: Progress,
    *,
    overwrite: bool,
) -> None:
    """Compute the basis, and put both files in place, the metadata first.

    A kill between the two leaves metadata alone, or beside an earlier ``.npy``, whose digest is another.
    """
    n_snapshots, n_weights = matrix.shape
    centred = kind == "pca"
    check_memory(n_snapshots, n_weights, n_components, max_memory)
    remove_leftovers(target.parent)
    missing = _result_bytes(n_weights, n_components) - shutil.disk_usage(target.parent).free
    if missing > 0:
        raise ConfigError(
            f"{target.parent} has {missing / 1e6:,.0f} MB too little free space for the basis. Free some, or give an "
            "--out on another disk."
        )
    with (
        threadpool_limits(1, user_api="blas"),  # a second thread, idle between two strips, would spin on its core
        open_atomic(target) as rows,
        tempfile.TemporaryFile(dir=target.parent) as mean,
    ):
        gram, digests = gram_pass(matrix, progress, centred=centred)
        for row, (entry, digest) in enumerate(zip(matrix.entries, digests, strict=True)):
            if entry.digest not in ("", digest):
                why = "its weights have another digest than the one recorded for it"
                raise BadSnapshotError(row, f"{matrix.paths[row]} is not what was written: {why}.")
        gram_centred = centre_gram(gram)
        if centred:
            coefficients = principal_directions(gram_centred, n_components)
        else:
            coefficients = snapshot_directions(gram, n_components)
        coefficients, off, digest = _write_rows(matrix, coefficients, rows, mean, progress, centred=centred)
        singular_values = spread_along(gram_centred if centred else gram, coefficients)
        explained = singular_values**2 / max(n_snapshots - 1, 1)
        total = float(np.trace(gram_centred)) / max(n_snapshots - 1, 1)
        fields = {
            "kind": kind,
            "mean": np.memmap(mean, np.float32, "r", shape=(n_weights,)),
            "singular_values": singular_values,
            "explained_variance": explained,
            "explained_variance_ratio": explained / total if total > 0 else explained * 0,
            "gram": gram_centred,
            "layout": matrix.layout,
            "snapshots": [
                Source(entry.file, entry.step, found) for entry, found in zip(matrix.entries, digests, strict=True)
            ],
            "digest": digest,
            "deviation": off,
        }
        check_out(target, overwrite=overwrite)  # another process may have been faster
        write_metadata(metadata_path(target), fields)


def _write_rows(
    matrix: WeightMatrix,
    coefficients: np.ndarray,
    rows: BinaryIO,
    mean: BinaryIO,
    progress: Progress,
    *,
    centred: bool,
) -> tuple[np.ndarray, float, str]:
    """Write the rows; where they are not orthonormal, correct the coefficients and write them again.

    Returns:
        The coefficients of the rows as written, float64 (k, N); how far they are from orthonormal; their digest.

    Raises:
        SeriesError: they can't be made orthonormal.
    """
    for _ in range(1 + _REPAIRS):
        row_gram, digest = rows_pass(matrix, coefficients, rows, mean, progress, centred=centred)
        if deviation(row_gram) <= TOLERANCE:
            return coefficients, deviation(row_gram), digest
        transform = repair_transform(row_gram)
        if transform is None:
            break
        coefficients = transform @ coefficients
    rank = int(np.linalg.matrix_rank(row_gram, tol=0.5, hermitian=True))
    raise SeriesError(
        f"n_components is {len(coefficients)}, but only about {rank} directions of the snapshots can be told from "
        f"rounding (they are nearly collinear). Ask for n_components = {rank} or fewer, or take more and different "
        "snapshots."
    )


def plan_basis(n_snapshots: int, n_weights: int, n_components: int | None = None) -> dict[str, int]:
    """Estimate what a basis takes, before anything is read: bytes by name.

    Args:
        n_snapshots, n_weights: N and M.
        n_components: as ``fit_basis`` takes it.

    Returns:
        ``n_snapshots``; ``n_weights``; ``read_bytes``, which are read twice; ``disk_bytes``, while it is made; and
        ``memory_bytes``, the process's own, memory-mapped pages aside.
    """
    k = n_components or 32
    return {
        "n_snapshots": n_snapshots,
        "n_weights": n_weights,
        "read_bytes": 4 * n_snapshots * n_weights,
        "disk_bytes": _result_bytes(n_weights, k),
        "memory_bytes": working_bytes(n_snapshots, n_weights, k),
    }


def _result_bytes(n_weights: int, n_components: int) -> int:
    """Return the disk space that a result takes while it is made: rows, and the mean twice."""
    return 4 * n_weights * (n_components + 2) + (1 << 20)
