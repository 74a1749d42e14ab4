"""One computation of a basis, from the matrix of snapshots to the two files, resumable at any moment."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dimred.errors import ConfigError, DimredError, SeriesError
from dimred.files.atomic import rename_durably
from dimred.files.digest import digest_of_chunks
from dimred.subspace.basis import SubspaceBasis, publish
from dimred.subspace.gram_and_rows import Known, NonFiniteError, RowsResult, block_width, gram_pass, rows_pass
from dimred.subspace.metadata import BasisMetadata, Source, write_metadata
from dimred.subspace.orthonormalise import TOLERANCE, deviation, repair_transform, snapshot_directions
from dimred.subspace.scratch import Scratch
from dimred.subspace.snapshot_count import check_enough
from dimred.subspace.spectrum import centre_gram, principal_directions, spread_along
from dimred.weights.matrix import WeightMatrix

__all__ = ["BadSnapshotError", "Job", "Progress", "finish_publishing", "make_job", "result_bytes", "run_job"]

_REPAIRS = 3
# Is told the phase ("reading snapshots", "writing basis"), the columns done, and the columns in all.
Progress = Callable[[str, int, int], None]


class BadSnapshotError(Exception):
    """Row ``row`` of the matrix can't be used, for ``reason``."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


@dataclass(frozen=True)
class Job:
    """What to compute.

    Attributes:
        matrix: the snapshots.
        kind: "pca" or "snapshots".
        n_components: k, or a share of variance.
        known: the rows whose Gram matrix an earlier result has.
        digests: what the digest of a row must be, where something tells.
        trusted: rows whose digest was compared already, by the manifest.
    """

    matrix: WeightMatrix
    kind: str
    n_components: int | float
    known: Known | None
    digests: dict[int, str]
    trusted: frozenset[int]

    @property
    def identity(self) -> list[Any]:
        """What a resumed run must have in common with the one that was killed."""
        known = None if self.known is None else [list(self.known.rows), self.known.gram.tobytes().hex()]
        layout = self.matrix.layout.fingerprint
        return [1, self.matrix.identity, layout, self.kind, repr(self.n_components), known]

    @property
    def most_components(self) -> int:
        """The largest k it may come to; a share of variance may need all directions."""
        return self.matrix.shape[0] - 1 if isinstance(self.n_components, float) else self.n_components


def make_job(matrix: WeightMatrix, kind: str, n_components: int | float, base: SubspaceBasis | None) -> Job:
    """The job, with what can be taken over from ``base``.

    Raises:
        SeriesError: too few snapshots, or snapshots of ``base`` are gone or changed.
    """
    check_enough(matrix.shape[0], n_components, kind, matrix.directory, len(matrix.skipped))
    digests = {row: entry.digest for row, entry in enumerate(matrix.entries) if entry.digest}
    if base is None or base.metadata is None:
        return Job(matrix, kind, n_components, None, digests, frozenset())
    rows = _rows_of(base, matrix)
    trusted = frozenset(row for row in rows if row in digests)
    for row, source in zip(rows, base.snapshots, strict=True):
        digests[row] = source.digest
    return Job(matrix, kind, n_components, Known(rows, base.metadata.gram), digests, trusted)


def _rows_of(base: SubspaceBasis, matrix: WeightMatrix) -> list[int]:
    rows: list[int] = []
    gone = []
    for source in base.snapshots:
        # Repeated snapshots have one digest: the one of the same name is taken first, and none twice.
        found = [
            row
            for row, entry in enumerate(matrix.entries)
            if row not in rows and (entry.digest or source.digest) == source.digest
            if entry.digest or entry.file == source.file
        ]
        found.sort(key=lambda row: matrix.entries[row].file != source.file)
        if found:
            rows.append(found[0])
        else:
            gone.append(source.file)
    if gone:
        raise SeriesError(
            f"{len(gone)} of the {len(base.snapshots)} snapshots that {base.path} was made from are gone from "
            f"{matrix.directory} or have changed, the first is {gone[0]}. All are needed to add to an exact basis; put "
            "them back, or make a new one with another --out or --force."
        )
    return rows


def result_bytes(n_columns: int, n_components: int) -> int:
    """The disk space that a result takes while it is made: rows, and the mean twice."""
    return 4 * n_columns * (n_components + 2) + (1 << 20)


def finish_publishing(target: Path) -> bool:
    """Finish what a run that was killed while it put its two files in place had begun; whether there was such a one."""
    scratch = Scratch(target, None)
    if not scratch.directory.exists():
        return False
    with scratch:
        if scratch.is_empty:  # killed while it removed the folder
            scratch.remove()
            return False
        if str(scratch.load_any().get("phase")) != "publish":
            return False
        _publish(scratch, target)
    return True


def _publish(scratch: Scratch, target: Path) -> None:
    scratch.save(phase="publish")
    if scratch.metadata.exists():
        publish(scratch.components, scratch.metadata, target)
    elif scratch.components.exists():
        rename_durably(scratch.components, target)
    scratch.remove()


def run_job(job: Job, target: Path, max_memory: int, progress: Progress, note: Callable[[str], None]) -> None:
    """Make ``target`` and its metadata; go on where a killed run stopped.

    Raises:
        BadSnapshotError: a row has a number that is not finite, or not the digest it should have.
        ConfigError: the memory or the disk space does not suffice.
        SeriesError: the snapshots span fewer than k directions.
        DimredError: the files can't be written.
    """
    n_snapshots, n_columns = job.matrix.shape
    width = block_width(n_snapshots, n_columns, job.most_components, max_memory)
    try:
        with threadpool_limits(1, user_api="blas"), Scratch(target, job.identity) as scratch:
            _run_in(scratch, job, target, width, progress, note)
    except OSError as error:
        raise DimredError(
            f"Writing {target} failed: {error}. What was done is kept in {target.name}.unfinished: once the cause is "
            "gone, the same command goes on from there."
        ) from error


def _run_in(
    scratch: Scratch, job: Job, target: Path, width: int, progress: Progress, note: Callable[[str], None]
) -> None:
    n_columns = job.matrix.shape[1]
    try:
        state = scratch.load()
        if state:
            phase = {"gram": "reading", "rows": "writing"}[str(state["phase"])]
            note(f"Going on where an earlier run stopped ({phase}, {int(state['column']) / n_columns:.0%}).")
        _check_space(target, scratch, n_columns, 1 if isinstance(job.n_components, float) else job.n_components)
        gram, digests = _gram_stage(job, width, scratch, progress)
        _rows_stage(job, width, scratch, progress, gram, digests)
    except (DimredError, BadSnapshotError):
        scratch.remove()
        raise
    _publish(scratch, target)


def _check_space(target: Path, scratch: Scratch, n_columns: int, n_components: int) -> None:
    taken = sum(path.stat().st_blocks * 512 for path in scratch.directory.iterdir())
    missing = result_bytes(n_columns, n_components) - taken - shutil.disk_usage(target.parent).free
    if missing > 0:
        raise ConfigError(
            f"{target.parent} has {missing / 1e6:,.0f} MB too little free space for the basis. Free some, or give an "
            "--out on another disk."
        )


def _gram_stage(job: Job, width: int, scratch: Scratch, progress: Progress) -> tuple[np.ndarray, list[str]]:
    n_snapshots, n_columns = job.matrix.shape
    state = scratch.load()
    if str(state.get("phase")) == "rows":
        return state["gram"], [str(digest) for digest in state["sources"]]
    hashed = [row for row in range(n_snapshots) if row not in job.trusted]
    try:
        gram, chunks = gram_pass(
            job.matrix,
            width,
            scratch,
            lambda done: progress("reading snapshots", done, n_columns),
            centred=job.kind == "pca",
            known=job.known,
            hashed=hashed,
        )
    except NonFiniteError as error:
        raise BadSnapshotError(error.row, _non_finite(job.matrix, error)) from None
    digests = {**job.digests, **{row: digest_of_chunks(chunks[row]) for row in hashed}}
    for row, expected in job.digests.items():
        if digests[row] != expected:
            path = job.matrix.directory / job.matrix.entries[row].file
            raise BadSnapshotError(
                row, f"{path} is not what was written: its weights have another digest than the one recorded for it."
            )
    return gram, [digests[row] for row in range(n_snapshots)]


def _non_finite(matrix: WeightMatrix, error: NonFiniteError) -> str:
    layout = matrix.layout
    number = int(np.searchsorted(layout.offsets, error.column, side="right")) - 1
    path = matrix.directory / matrix.entries[error.row].file
    place = error.column - layout.offsets[number]
    return f"{path} has a number that is not finite in the parameter {layout.names[number]!r} (entry {place})."


def _rows_stage(
    job: Job, width: int, scratch: Scratch, progress: Progress, gram: np.ndarray, digests: list[str]
) -> None:
    n_columns, centred = job.matrix.shape[1], job.kind == "pca"
    gram_centred = centre_gram(gram)
    if centred:
        directions = principal_directions(gram_centred, job.n_components)
    else:
        directions = snapshot_directions(gram, int(job.n_components))
    state = scratch.load()
    coefficients = state["coefficients"] if str(state.get("phase")) == "rows" else directions.coefficients
    for _ in range(1 + _REPAIRS):
        result = rows_pass(
            job.matrix,
            width,
            coefficients,
            scratch,
            lambda done: progress("writing basis", done, n_columns),
            centred=centred,
            keep={"gram": gram, "sources": np.array(digests)},
        )
        if deviation(result.row_gram) <= TOLERANCE:
            break
        transform = repair_transform(result.row_gram)
        if transform is None:
            raise _too_collinear(job, result)
        coefficients = transform @ coefficients
    else:
        raise _too_collinear(job, result)
    singular_values = spread_along(gram_centred if centred else gram, coefficients)
    explained = singular_values**2 / (job.matrix.shape[0] - 1) if job.matrix.shape[0] > 1 else singular_values * 0
    sources = tuple(
        Source(entry.file, entry.step, digest) for entry, digest in zip(job.matrix.entries, digests, strict=True)
    )
    total = directions.total_variance
    metadata = BasisMetadata(
        kind=job.kind,
        mean=np.lib.format.open_memmap(scratch.mean, mode="r"),
        singular_values=singular_values,
        explained_variance=explained,
        explained_variance_ratio=explained / total if total > 0 else explained * 0,
        gram=gram_centred,
        layout=job.matrix.layout,
        snapshots=sources,
        digest=digest_of_chunks(result.digests),
        deviation=deviation(result.row_gram),
    )
    write_metadata(scratch.metadata, metadata)


def _too_collinear(job: Job, result: RowsResult) -> SeriesError:
    rank = int(np.linalg.matrix_rank(result.row_gram, tol=0.5, hermitian=True))
    return SeriesError(
        f"n_components is {job.n_components}, but only about {rank} directions of the snapshots can be told from "
        f"rounding (they are nearly collinear). Ask for n_components = {rank} or fewer, or take more and different "
        "snapshots."
    )
