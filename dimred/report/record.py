"""What the files of a run say, read once for a report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError
from dimred.files.checksummed_json import read_checksummed
from dimred.files.metrics_file import read_metrics
from dimred.files.run_names import METRICS, RESULT, SNAPSHOTS
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.plan import sample_gram
from dimred.subspace.spectrum import centre_gram
from dimred.weights.matrix import WeightMatrix
from dimred.weights.series import CheckpointSeries


@dataclass(frozen=True)
class StageOneRecord:
    """A stage 1 run, finished or not."""

    folder: Path
    epochs: list[dict[str, Any]]  # its metrics, one record an epoch; at least one
    snapshots: CheckpointSeries | None  # the series as it was when it was read; None before the first snapshot

    @property
    def accuracies(self) -> dict[int, float]:
        """Epoch -> accuracy, of the epochs after which it was measured."""
        return {record["epoch"]: record["accuracy"] for record in self.epochs if record["accuracy"] is not None}

    @property
    def last_epoch(self) -> int:
        """The last epoch that is complete."""
        return int(self.epochs[-1]["epoch"])

    def snapshot_epochs(self, basis: SubspaceBasis | None = None) -> list[int]:
        """The epoch of each snapshot that is kept, in order; with a basis only of those it was made from."""
        entries = self.snapshots.entries if self.snapshots else ()
        used = None if basis is None else {source.file for source in basis.snapshots}
        return [entry.epoch for entry in entries if used is None or entry.file in used]

    def variance_shares(self) -> np.ndarray | None:
        """The share of the snapshots' variance along each principal direction, (N - 1,); None of fewer than two."""
        if self.snapshots is None or len(self.snapshots) < 2:
            return None
        variances = np.linalg.eigvalsh(centre_gram(sample_gram(WeightMatrix(self.snapshots))))[:0:-1]
        shares: np.ndarray = np.maximum(variances, 0.0) / variances.sum()
        return shares


@dataclass(frozen=True)
class StageTwoRecord:
    """A finished stage 2 run."""

    folder: Path
    result: dict[str, Any]  # its result.json
    steps: list[dict[str, Any]]  # its metrics, one record a step; at least one
    basis: SubspaceBasis | None  # of the search; None without directions
    stage_1: StageOneRecord  # the run that it began from

    def coordinates(self) -> np.ndarray:
        """Where the steps of the search led, relative to its start, (n_steps + 1, k) float64."""
        moves = np.array([step["subspace_step"] for step in self.steps], np.float64)
        return np.concatenate([np.zeros_like(moves[:1]), moves.cumsum(0)])


def read_stage_1(checkpoints: Path) -> StageOneRecord:
    """Read a stage 1 run, which may go on meanwhile.

    Args:
        checkpoints: the run's folder of checkpoints, such as ``device0_stage_1/checkpoint_stage_1``.

    Raises:
        ConfigError: its parent is not the folder of a run, or the run has not finished an epoch.
    """
    folder, snapshots = checkpoints.parent, checkpoints / SNAPSHOTS
    if not (folder / METRICS).is_file():
        raise ConfigError(f"{str(folder)!r} has no metrics.jsonl; a report needs the folder of stage 1 as it was")
    epochs = read_metrics(folder / METRICS)
    if not epochs:
        raise ConfigError(f"{str(folder)!r} has not finished an epoch; there is nothing to report")
    has_snapshots = any(snapshots.glob("*-*_*.*"))  # the folder is made before the first of them
    return StageOneRecord(folder, epochs, CheckpointSeries.open(snapshots) if has_snapshots else None)


def read_stage_2(folder: Path) -> StageTwoRecord:
    """Read a finished stage 2 run and its stage 1.

    Raises:
        ConfigError: ``folder`` is no finished stage 2 run, its result is damaged, or what it was made from is gone.
    """
    path = folder / RESULT
    if not path.is_file():
        raise ConfigError(f"RUN is {str(folder)!r}, which has no result.json; give the folder of a finished stage 2")
    try:
        result = read_checksummed(path)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; stage 2's --resume writes it again") from None
    sources: dict[str, Any] = result.get("sources") or {}
    for name in ("data", "weights", *(("basis",) if result.get("basis") else ())):
        source = sources.get(name)
        if not source or not Path(source).exists():
            raise ConfigError(f"{path} says that {name} was {source!r}, which is not there any more; put it back")
    stage_1 = read_stage_1(Path(sources["weights"]).parent)
    steps = read_metrics(folder / METRICS)
    if not steps:
        raise ConfigError(f"RUN is {str(folder)!r}, whose search took no step; there is nothing to report")
    basis = load_basis(Path(sources["basis"])) if result["basis"] else None
    return StageTwoRecord(folder, result, steps, basis, stage_1)
