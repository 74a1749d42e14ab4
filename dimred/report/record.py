"""What the files of a run say, read once for a report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError
from dimred.files.checksummed_json import read_checksummed
from dimred.files.metrics_file import ACCURACY, read_metrics
from dimred.files.run_names import (
    METRICS,
    RESULT,
    SNAPSHOTS,
    STAGE_1_CHECKPOINTS,
    STAGE_2_CHECKPOINTS,
    checkpoint_place,
)
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

    def measured(self, metric: str) -> dict[int, float]:
        """Epoch -> accuracy, or another metric by its name, of the epochs after which it was measured."""
        return {record["epoch"]: record[metric] for record in self.epochs if record.get(metric) is not None}

    @property
    def averaged(self) -> list[dict[str, Any]]:
        """The records of the epochs after which ``stop: averaged`` measured."""
        return [record for record in self.epochs if "averaged_loss" in record]

    @property
    def seconds(self) -> float:
        """What it took: training, evaluation, measuring averages."""
        parts = ("seconds", "evaluation_seconds", "averaged_seconds")
        return float(sum(record.get(part) or 0.0 for record in self.epochs for part in parts))

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
        """The share of the snapshots' variance along each principal direction, (N - 1,); None where there is none."""
        if self.snapshots is None or len(self.snapshots) < 2:
            return None
        variances = np.linalg.eigvalsh(centre_gram(sample_gram(WeightMatrix(self.snapshots))))[:0:-1]
        variances = np.maximum(variances, 0.0)
        return variances / variances.sum() if variances.any() else None


@dataclass(frozen=True)
class StageTwoRecord:
    """A finished stage 2 run."""

    folder: Path
    result: dict[str, Any]  # its result.json
    steps: list[dict[str, Any]]  # its metrics, one record a step; at least one
    basis: SubspaceBasis | None  # of the search; None without directions
    stage_1: StageOneRecord | None  # the run that it began from; None where that is not there any more
    gone: tuple[str, ...]  # which of its sources (data, weights, basis) are not there any more

    @property
    def metric(self) -> str:
        """What the network is measured by."""
        return str(self.result.get("metric", ACCURACY))

    @property
    def by_point(self) -> dict[int, float]:
        """Epoch of stage 2, 0 for its start -> the metric."""
        by_epoch = {int(epoch): value for epoch, value in self.result[f"{self.metric}_by_epoch"].items()}
        return {0: self.result[f"{self.metric}_start"]} | by_epoch

    @property
    def kept_metric(self) -> float:
        """Of the network that it left, with the statistics that stand in its file."""
        return float(self.result.get(f"{self.metric}_reestimated", self.result[self.metric]))

    @property
    def stage_1_epochs(self) -> int:
        """How many epochs stage 1 had made, which may have gone on since; 0 where that is not known."""
        place = checkpoint_place(Path(self.result["sources"]["weights"]))
        if place is not None:
            return place.epoch
        return self.stage_1.last_epoch if self.stage_1 is not None else 0

    @property
    def final_weights(self) -> Path:
        """The network to use."""
        return next((self.folder / STAGE_2_CHECKPOINTS).glob("*-final.ckpt"), self.folder / STAGE_2_CHECKPOINTS)

    @property
    def seconds(self) -> float:
        """What it took: choosing the start, the search, choosing what is kept."""
        return float(sum(self.result.get(f"{part}_seconds", 0.0) for part in ("start", "average", "search", "kept")))

    def coordinates(self) -> np.ndarray:
        """Where the steps of the search led, relative to its start, (n_steps + 1, k) float64."""
        moves = np.array([step["subspace_step"] for step in self.steps], np.float64)
        return np.concatenate([np.zeros_like(moves[:1]), moves.cumsum(0)])


def passes_of(result: Mapping[str, Any], n_epochs: int | None = None) -> float:
    """What so many epochs of stage 2, or all, cost in epochs of ordinary training: a forward and a backward pass each.

    Args:
        result: its ``result.json``; a trial is a forward pass, a gradient both.
        n_epochs: of the search.
    """
    epochs = result["epochs"] if n_epochs is None else n_epochs
    return float(epochs * (result["gradients"] + result["trials"] / 2) / result["steps"])


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
    """Read a finished stage 2 run, and its stage 1 where that is still there.

    Raises:
        ConfigError: ``folder`` is no finished stage 2 run, or its result is damaged.
    """
    path = folder / RESULT
    if not path.is_file():
        is_unfinished = (folder / STAGE_2_CHECKPOINTS).is_dir()
        remedy = "finish stage 2 by its --resume" if is_unfinished else "give the folder of a stage 1 or stage 2 run"
        raise ConfigError(f"RUN is {str(folder)!r}, which has no {RESULT}; {remedy}")
    try:
        result = read_checksummed(path)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; stage 2's --resume writes it again") from None
    steps = read_metrics(folder / METRICS)
    if not steps:
        raise ConfigError(f"RUN is {str(folder)!r}, whose search took no step; there is nothing to report")
    sources = {name: Path(source) for name, source in result["sources"].items() if source}
    gone = tuple(name for name, source in sources.items() if not source.exists())
    checkpoints = sources["weights"].parent
    has_stage_1 = (checkpoints.parent / METRICS).is_file() and checkpoints.name == STAGE_1_CHECKPOINTS
    basis = load_basis(sources["basis"]) if result["basis"] and "basis" not in gone else None
    return StageTwoRecord(folder, result, steps, basis, read_stage_1(checkpoints) if has_stage_1 else None, gone)
