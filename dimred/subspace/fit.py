"""fit_basis: exact principal directions of a series of snapshots, streamed under a memory limit."""

import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import BasisMismatchError, CheckpointError, ConfigError, SeriesError
from dimred.subspace.basis import SubspaceBasis, check_out, load_basis
from dimred.subspace.gram_and_rows import BadSnapshotError, Progress
from dimred.subspace.job import Job, finish_publishing, run_job
from dimred.subspace.metadata import KINDS, metadata_path
from dimred.subspace.scratch import Scratch
from dimred.subspace.spectrum import check_enough
from dimred.weights.layout import WeightLayout
from dimred.weights.matrix import WeightMatrix
from dimred.weights.series import CheckpointSeries

DEFAULT_MEMORY = 1_000_000_000  # bytes


def fit_basis(
    series: CheckpointSeries | str | os.PathLike[str],
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
        series: the snapshots, or their folder.
        n_components: k; a share of variance between 0 and 1; default 32, and for kind "snapshots" all N.
        out: the ``.npy`` file; default none, the result then lives in unnamed temporary files.
        kind: "pca", or "snapshots" for Gram-Schmidt of the last k raw snapshots (trainable averaging).
        network: a MindSpore cell whose trainable parameters make the columns.
        layout: the same, without a network; default the series' manifest, or what its first file suggests.
        append: ``out`` is an earlier result, which the new one replaces. The snapshots it was made from must still be
            in the series, unchanged: every row of an exact basis depends on all of them. The result is that of a fresh
            run; k is by default that of the earlier one.
        overwrite: replace an ``out`` that is not the same result.
        skip_bad: leave out damaged snapshots instead of raising.
        max_memory: bytes this call may take, memory-mapped pages aside.
        progress: called often, from several threads.
        note: is told what a person should know: what is left out, that an earlier run is gone on from. Without it,
            snapshots left out by ``skip_bad`` are a warning.

    Raises:
        ConfigError: an argument is not allowed, or ``out`` exists.
        SeriesError: too few snapshots (k + 1 are needed, one goes into the mean), they span fewer than k directions, or
            ``append`` misses some.
        CheckpointError: a snapshot is missing, damaged, changed, or has numbers that are not finite.
        BasisMismatchError: ``append`` to a basis of another network.
        RunError: another process computes the same ``out``.
        DimredError: ``out`` can't be written; what was done is kept for the next call.
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
    _check_arguments(n_components, kind, append)
    wanted = layout if layout or network is None else WeightLayout.from_network(network)
    matrix = WeightMatrix(series, wanted, skip_bad=skip_bad)
    tell = note or (lambda text: None)
    finished = finish_publishing(target)
    if matrix.ignored:
        first = ", ".join(repr(name) for name in matrix.ignored[:2])
        tell(f"{len(matrix.ignored)} entries of each snapshot are not weights and are left out: {first} and the like.")
    earlier = _earlier(target, matrix.layout) if append else None
    if n_components is None:
        n_components = earlier.n_components if earlier else 32 if kind == "pca" else matrix.shape[0]
    while True:
        check_enough(matrix.shape[0], n_components, kind, matrix.directory, len(matrix.skipped))
        job = Job(matrix, kind, n_components, _expected_digests(matrix, earlier))
        if _is_done(target, job, finished):
            tell(f"{target} is this very basis already; nothing to do.")
            return load_basis(target, layout=matrix.layout, verify=False)
        check_out(target, overwrite=overwrite or append)
        try:
            run_job(job, target, max_memory, progress or (lambda phase, done, total: None), tell)
        except BadSnapshotError as bad:
            if not skip_bad:
                raise CheckpointError(f"{bad.reason} Restore it, or leave it out with --skip-bad.") from None
            matrix = matrix.without(bad.row, bad.reason)
        else:
            for reason in matrix.skipped:
                (note or warnings.warn)(f"Left out: {reason}")
            return load_basis(target, layout=matrix.layout, verify=False)


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


def _earlier(target: Path, layout: WeightLayout) -> SubspaceBasis:
    """The result that is to be appended to; its rows are replaced, not used."""
    basis = load_basis(target, layout=layout, verify=False)
    if basis.kind is None:
        raise ConfigError(
            f"append needs to know the snapshots of {target}, but there is no {metadata_path(target).name} beside it."
        )
    if basis.kind != "pca":
        raise ConfigError(
            f"append works with principal directions only; {target} is a basis of raw snapshots. Make it afresh."
        )
    return basis


def _expected_digests(matrix: WeightMatrix, earlier: SubspaceBasis | None) -> tuple[str, ...]:
    """What the digest of each row must be, by the manifest or by the earlier basis; empty where neither tells."""
    digests = {entry.file: entry.digest for entry in matrix.entries}
    gone = []
    for source in earlier.snapshots if earlier else ():
        if source.file not in digests or digests[source.file] not in ("", source.digest):
            gone.append(source.file)
        digests[source.file] = source.digest
    if earlier and gone:
        raise SeriesError(
            f"{len(gone)} of the {len(earlier.snapshots)} snapshots that {earlier.path} was made from are gone from "
            f"{matrix.directory} or have changed, the first is {gone[0]}. All are needed to add to an exact basis; put "
            "them back, or make a new one with another --out or --force."
        )
    return tuple(digests[entry.file] for entry in matrix.entries)


def _is_done(target: Path, job: Job, finished: str) -> bool:
    """Whether the whole result of the job is at ``target`` already.

    ``finished`` is the job whose files were just put in place. Without a manifest only this tells: the digests of the
    snapshots are not known before they are read.
    """
    if not target.exists() or not metadata_path(target).exists():
        return False
    try:
        basis = load_basis(target, layout=job.matrix.layout, verify=False)
        made_from = [(source.step, source.digest) for source in basis.snapshots]
        wanted = [(entry.step, entry.digest) for entry in job.matrix.entries]
        same = basis.kind == job.kind and made_from == wanted and _has_size(basis, job.n_components)
        if not same and finished != Scratch(target, job.identity).job:
            return False
        load_basis(target, layout=job.matrix.layout)  # reads all rows
    except BasisMismatchError:
        return False
    return True


def _has_size(basis: SubspaceBasis, n_components: int | float) -> bool:
    if isinstance(n_components, int) or basis.explained_variance_ratio is None:
        return basis.n_components == n_components
    explained = np.cumsum(basis.explained_variance_ratio)
    return bool(explained[-1] >= n_components and (len(explained) == 1 or explained[-2] < n_components))
