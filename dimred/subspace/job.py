"""One computation of a basis, from the matrix of snapshots to the two files, resumable at any moment."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dimred.errors import ConfigError, DimredError, SeriesError, StoppedError
from dimred.files.atomic import rename_durably
from dimred.files.digest import digest_of_chunks
from dimred.subspace.gram_and_rows import BadSnapshotError, Progress, block_width, gram_pass, rows_pass
from dimred.subspace.metadata import Source, metadata_path, write_metadata
from dimred.subspace.scratch import Scratch
from dimred.subspace.spectrum import (
    TOLERANCE,
    centre_gram,
    deviation,
    principal_directions,
    repair_transform,
    snapshot_directions,
    spread_along,
)
from dimred.weights.matrix import WeightMatrix

_REPAIRS = 3


@dataclass(frozen=True)
class Job:
    """What to compute: k may be a share of variance; the digest of a snapshot is empty where none was recorded."""

    matrix: WeightMatrix
    kind: str
    n_components: int | float
    digests: tuple[str, ...]

    @property
    def identity(self) -> list[Any]:
        """What a resumed run must have in common with the one that was killed."""
        return [2, self.matrix.identity, self.matrix.layout.fingerprint, self.kind, repr(self.n_components)]


def result_bytes(n_columns: int, n_components: int) -> int:
    """The disk space that a result takes while it is made: rows, and the mean twice."""
    return 4 * n_columns * (n_components + 2) + (1 << 20)


def run_job(job: Job, target: Path, max_memory: int, progress: Progress, note: Callable[[str], None]) -> None:
    """Make ``target`` and its metadata; go on where a killed run stopped.

    Raises:
        BadSnapshotError: a row has a number that is not finite, or not the digest it should have.
        ConfigError: the memory or the disk space does not suffice.
        SeriesError: the snapshots span fewer than k directions.
        RunError: another process computes the same ``target``.
        DimredError: the files can't be written.
    """
    (n_snapshots, n_columns), k = job.matrix.shape, job.n_components
    least, most = (1, n_snapshots - 1) if isinstance(k, float) else (k, k)
    width = block_width(n_snapshots, n_columns, most, max_memory)
    try:
        # BLAS in one thread: a second one, idle between two strips, spins on the core that reads, hashes and writes.
        with threadpool_limits(1, user_api="blas"), Scratch(target, job.identity) as scratch:
            try:
                if state := scratch.load():
                    phase = {"gram": "reading", "rows": "writing"}[str(state["phase"])]
                    note(f"Going on where an earlier run stopped ({phase}, {int(state['column']) / n_columns:.0%}).")
                _check_space(target, scratch, result_bytes(n_columns, least))
                gram, digests = _gram(job, width, scratch, progress)
                write_metadata(scratch.metadata, _rows(job, width, scratch, progress, gram, digests))
            except (DimredError, BadSnapshotError) as error:
                if not isinstance(error, StoppedError):  # by a signal, after which the same run goes on
                    scratch.remove()
                raise
            _publish(scratch, target)
    except OSError as error:
        raise DimredError(
            f"Writing {target} failed: {error}. What was done is kept in {target.name}.unfinished: once the cause is "
            "gone, the same command goes on from there."
        ) from error


def finish_publishing(target: Path) -> str:
    """Finish what a run began that was killed while it put its two files in place; which job it was, or ""."""
    scratch = Scratch(target, None)
    if not scratch.directory.exists():
        return ""
    with scratch:
        if scratch.is_empty:  # killed while it removed the folder
            scratch.remove()
            return ""
        state = scratch.load_any()
        if str(state.get("phase")) != "publish":
            return ""
        _publish(scratch, target)
        return str(state["job"])


def _publish(scratch: Scratch, target: Path) -> None:
    """Rename both files to where they belong, the metadata first.

    Between the two an old ``.npy`` may stand beside a new ``.h5``: their digests differ, so this is found.
    """
    if str(scratch.load_any().get("phase")) != "publish":
        scratch.save("publish")
    for source, place in ((scratch.metadata, metadata_path(target)), (scratch.components, target)):
        if source.exists():
            rename_durably(source, place)
    scratch.remove()


def _check_space(target: Path, scratch: Scratch, needed: int) -> None:
    taken = sum(path.stat().st_blocks * 512 for path in scratch.directory.iterdir())
    missing = needed - taken - shutil.disk_usage(target.parent).free
    if missing > 0:
        raise ConfigError(
            f"{target.parent} has {missing / 1e6:,.0f} MB too little free space for the basis. Free some, or give an "
            "--out on another disk."
        )


def _gram(job: Job, width: int, scratch: Scratch, progress: Progress) -> tuple[np.ndarray, list[str]]:
    """The first pass: the Gram matrix, and the digest of each snapshot, which must be the expected one."""
    matrix = job.matrix
    state = scratch.load()
    if str(state.get("phase")) == "rows":
        gram, digests = state["gram"], [str(digest) for digest in state["sources"]]
    else:
        gram, chunks = gram_pass(matrix, width, scratch, progress, centred=job.kind == "pca")
        digests = [digest_of_chunks(row) for row in chunks]
    for row, (found, expected) in enumerate(zip(digests, job.digests, strict=True)):
        if expected and found != expected:
            why = "its weights have another digest than the one recorded for it"
            raise BadSnapshotError(row, f"{matrix.paths[row]} is not what was written: {why}.")
    return gram, digests


def _rows(
    job: Job, width: int, scratch: Scratch, progress: Progress, gram: np.ndarray, digests: list[str]
) -> dict[str, Any]:
    """The second pass: write the rows and the mean, and write them again where they come out tilted."""
    n_snapshots, centred = job.matrix.shape[0], job.kind == "pca"
    gram_centred = centre_gram(gram)
    state = scratch.load()
    if str(state.get("phase")) == "rows":
        coefficients = state["coefficients"]
    elif centred:
        coefficients = principal_directions(gram_centred, job.n_components)
    else:
        coefficients = snapshot_directions(gram, int(job.n_components))
    for _ in range(1 + _REPAIRS):
        keep = {"gram": gram, "sources": np.array(digests)}
        row_gram, chunks = rows_pass(job.matrix, width, coefficients, scratch, progress, centred=centred, keep=keep)
        if deviation(row_gram) <= TOLERANCE:
            break
        transform = repair_transform(row_gram)
        if transform is None:
            raise _too_collinear(job, row_gram)
        coefficients = transform @ coefficients
    else:
        raise _too_collinear(job, row_gram)
    singular_values = spread_along(gram_centred if centred else gram, coefficients)
    explained = singular_values**2 / max(n_snapshots - 1, 1)
    total = float(np.trace(gram_centred)) / max(n_snapshots - 1, 1)
    entries = zip(job.matrix.entries, digests, strict=True)
    return {
        "kind": job.kind,
        "mean": np.lib.format.open_memmap(scratch.mean, mode="r"),
        "singular_values": singular_values,
        "explained_variance": explained,
        "explained_variance_ratio": explained / total if total > 0 else explained * 0,
        "gram": gram_centred,
        "layout": job.matrix.layout,
        "snapshots": tuple(Source(entry.file, entry.step, digest) for entry, digest in entries),
        "digest": digest_of_chunks(chunks),
        "deviation": deviation(row_gram),
    }


def _too_collinear(job: Job, row_gram: np.ndarray) -> SeriesError:
    rank = int(np.linalg.matrix_rank(row_gram, tol=0.5, hermitian=True))
    return SeriesError(
        f"n_components is {job.n_components}, but only about {rank} directions of the snapshots can be told from "
        f"rounding (they are nearly collinear). Ask for n_components = {rank} or fewer, or take more and different "
        "snapshots."
    )
