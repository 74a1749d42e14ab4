"""fit_basis: exact principal directions of a series of snapshots, streamed under a memory limit."""

import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import BasisMismatchError, CheckpointError, ConfigError
from dimred.subspace.basis import SubspaceBasis, check_out, load_basis
from dimred.subspace.job import BadSnapshotError, Job, Progress, finish_publishing, make_job, run_job
from dimred.subspace.metadata import KINDS, metadata_path
from dimred.weights.layout import WeightLayout
from dimred.weights.matrix import WeightMatrix
from dimred.weights.series import CheckpointSeries

__all__ = ["DEFAULT_MEMORY", "fit_basis"]

DEFAULT_MEMORY = 1_000_000_000  # bytes


def fit_basis(
    series: CheckpointSeries,
    n_components: int | float | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    kind: str = "pca",
    network: Any = None,
    layout: WeightLayout | None = None,
    append: bool = False,
    overwrite: bool = False,
    skip_bad: bool = False,
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> SubspaceBasis:
    """The orthonormal basis of the subspace in which the snapshots of a series lie.

    With the snapshots as the rows of X (N x M) and their mean m: X - 1m' = U S P, where (X - 1m')(X - 1m')' = U S^2 U'
    is the N x N Gram matrix. Two passes over the columns, in float64: one forms the Gram matrix, one writes
    P = S^-1 U' (X - 1m') as float32 and measures P P'. Rows that come out tilted (nearly collinear snapshots) are
    orthonormalised and written again.

    The result is ``out`` (rows, float32) and beside it ``.h5`` (mean, spectrum, layout, sources), written whole or not
    at all. A run that was killed leaves ``out.unfinished``; the same call goes on from there.

    Args:
        series: the snapshots.
        n_components: k; a share of variance between 0 and 1; default 32, and for kind "snapshots" all N.
        out: the ``.npy`` file; default none, the result then lives in unnamed temporary files.
        kind: "pca", or "snapshots" for Gram-Schmidt of the last k raw snapshots (trainable averaging).
        network: a MindSpore cell whose trainable parameters make the columns.
        layout: the same, without a network; default the series' manifest, or what its first file suggests.
        append: ``out`` is an earlier result; add the snapshots it does not have. The earlier snapshots must still be in
            the series: every row of an exact basis depends on all of them. What is saved is their Gram matrix.
        overwrite: replace an ``out`` that is not the same result.
        skip_bad: leave out damaged snapshots instead of raising.
        max_memory: bytes this call may take, memory-mapped pages aside.
        progress: called often, from several threads.
        note: is told what a person should know: what is left out, that an earlier run is gone on from. Without it,
            snapshots left out by ``skip_bad`` are a warning.

    Raises:
        ConfigError: an argument is not allowed, or ``out`` exists.
        SeriesError: too few snapshots (k + 1 are needed, one goes into the mean), or they span fewer than k directions.
        CheckpointError: a snapshot is missing, damaged, changed, or has numbers that are not finite.
        BasisMismatchError: ``append`` to a basis of another network.
        DimredError: ``out`` can't be written; what was done is kept for the next call.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="dimred-") as folder:
            made = fit_basis(
                series, n_components, out=Path(folder) / "basis.npy", kind=kind, network=network, layout=layout,
                skip_bad=skip_bad, max_memory=max_memory, progress=progress, note=note,
            )  # fmt: skip
            return replace(made, path=None)  # the mappings hold the files after their names are gone
    target = Path(out)
    _check_arguments(n_components, kind, append)
    wanted = layout if layout or network is None else WeightLayout.from_network(network)
    matrix = WeightMatrix(series, wanted, skip_bad=skip_bad)
    tell = note or (lambda text: None)
    finished = finish_publishing(target)
    if matrix.ignored:
        first = ", ".join(repr(name) for name in matrix.ignored[:2])
        tell(f"{len(matrix.ignored)} entries of each snapshot are not weights and are left out: {first} and the like.")
    base = _earlier(target, matrix.layout) if append else None
    if n_components is None:
        n_components = (32 if kind == "pca" else matrix.shape[0]) if base is None else base.n_components
    job = make_job(matrix, kind, n_components, base)
    same = _same_result(target, job, finished)
    if same is not None:
        tell(f"{target} is this very basis already; nothing to do.")
        return same
    check_out(target, overwrite=overwrite or append)
    while True:
        try:
            run_job(job, target, max_memory, progress or (lambda phase, done, total: None), tell)
        except BadSnapshotError as bad:
            if not skip_bad:
                raise CheckpointError(f"{bad.reason} Restore it, or leave it out with --skip-bad.") from None
            matrix = matrix.without(bad.row, bad.reason)
            job = make_job(matrix, kind, n_components, base)
        else:
            for skipped in matrix.skipped:
                (note or warnings.warn)(f"Left out: {skipped.reason}")
            return load_basis(target, layout=matrix.layout, verify=False)


def _earlier(target: Path, layout: WeightLayout) -> SubspaceBasis:
    base = load_basis(target, layout=layout, verify=False)  # its rows are replaced, not used
    if base.metadata is None:
        raise ConfigError(
            f"append needs the Gram matrix of {target}, but there is no {metadata_path(target).name} beside it."
        )
    if base.kind != "pca":
        raise ConfigError(
            f"append works with principal directions only; {target} is a basis of raw snapshots. Make it afresh."
        )
    return base


def _check_arguments(n_components: int | float | None, kind: str, append: bool) -> None:
    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r}; give one of {', '.join(KINDS)}.")
    if append and kind != "pca":
        raise ConfigError("append works with kind 'pca' only; make a basis of raw snapshots afresh, with --force.")
    share = isinstance(n_components, float) and 0 < n_components < 1 and kind == "pca"
    number = isinstance(n_components, int) and not isinstance(n_components, bool) and n_components >= 1
    if n_components is not None and not share and not number:
        raise ConfigError(
            f"n_components is {n_components!r}; give a whole number of at least 1, or (for pca) a share of the "
            "variance between 0 and 1, such as 0.95."
        )


def _same_result(target: Path, job: Job, finished: bool) -> SubspaceBasis | None:
    """The basis that is at ``target`` already, if it is what the job would make."""
    if not target.exists() or not metadata_path(target).exists():
        return None
    try:
        basis = load_basis(target, layout=job.matrix.layout, verify=False)
    except BasisMismatchError:
        return None
    if not _is_of(basis, job, finished):
        return None
    try:
        return load_basis(target, layout=job.matrix.layout)  # reads all rows
    except BasisMismatchError:
        return None


def _is_of(basis: SubspaceBasis, job: Job, finished: bool) -> bool:
    """Whether the basis is what the job would make, going by its metadata.

    Without a manifest the digests of the snapshots are not known before they are read: then names and steps decide
    where the basis was just ``finished``, and nothing does otherwise.
    """
    made_from = [(source.step, source.digest) for source in basis.snapshots]
    wanted = [(entry.step, entry.digest) for entry in job.matrix.entries]
    if finished and not any(digest for _, digest in wanted):
        made_from = [(step, "") for step, _ in made_from]
    return basis.kind == job.kind and made_from == wanted and _has_size(basis, job.n_components)


def _has_size(basis: SubspaceBasis, n_components: int | float) -> bool:
    if isinstance(n_components, int):
        return basis.n_components == n_components
    if basis.metadata is None:
        return False
    explained = np.cumsum(basis.metadata.explained_variance_ratio)
    return bool(explained[-1] >= n_components and (len(explained) == 1 or explained[-2] < n_components))
