"""Read a run's files for a report."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.layout import arrays_digest
from dimred.checkpoints.matrix import WeightMatrix
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageTwoConfig, load_config
from dimred.errors import CheckpointError, ConfigError
from dimred.report.method_report import MethodReport, report_of
from dimred.run_files.metric import AS_TRAINED, REESTIMATED, Metric
from dimred.run_files.metrics_file import numbered_records
from dimred.run_files.run_names import (
    METRICS,
    RESULT,
    SNAPSHOTS,
    STAGE_1_CHECKPOINTS,
    STAGE_2_CHECKPOINTS,
    epochs_of_checkpoint,
    own_config,
)
from dimred.run_files.stage_two_result import FINAL, FORWARD, START, StageTwoResult
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.gram_and_rows import gram_pass
from dimred.subspace.spectrum import centre_gram

_log = logging.getLogger(__name__)
_SECONDS = ("seconds", "evaluation_seconds", "averaged_seconds")  # keys of an epoch's record


@dataclass(frozen=True)
class StageOneRecord:
    """What the files of a stage 1 run hold, finished or not."""

    folder: Path
    epochs: list[dict[str, Any]]  # its metrics, one record per epoch; at least one
    snapshots: CheckpointSeries | None  # those that existed when the run was read; None before the first

    def by_epoch(self, metric: Metric, kind: str) -> dict[int, float]:
        """Return epoch -> a metric's value, without the epochs after which it was not measured.

        Args:
            metric: the metric.
            kind: with which BatchNorm statistics it was measured, ``AS_TRAINED`` or ``REESTIMATED``.
        """
        values = {record["epoch"]: record["metrics"].get(metric.name, {}).get(kind) for record in self.epochs}
        return {epoch: value for epoch, value in values.items() if value is not None}

    @property
    def average_records(self) -> list[dict[str, Any]]:
        """Return the records of the epochs after which ``stop: averaged`` measured an average of the snapshots."""
        return [record for record in self.epochs if "averaged_loss" in record]

    def stopping_passes(self, until_epoch: int) -> float:
        """Return what ``stop: averaged`` cost until an epoch, in passes as in ``StageTwoResult.passes``."""
        until = [record for record in self.epochs if record["epoch"] <= until_epoch]
        return FORWARD * sum(record.get("averaged_forward_passes", 0.0) for record in until)

    def seconds_until(self, epoch: int) -> float:
        """Return the wall seconds spent on training, evaluating and measuring averages until the end of an epoch."""
        until = [record for record in self.epochs if record["epoch"] <= epoch]
        return float(sum(record.get(part) or 0.0 for record in until for part in _SECONDS))

    @property
    def last_epoch(self) -> int:
        """Return the last complete epoch."""
        return int(self.epochs[-1]["epoch"])

    def snapshot_epochs(self, basis: SubspaceBasis | None = None) -> list[int]:
        """Return the existing snapshots' epochs, oldest first, or only those that a basis was made from."""
        entries = self.snapshots.entries if self.snapshots else ()
        files = None if basis is None else {source.file for source in basis.snapshots}
        return [entry.epoch for entry in entries if files is None or entry.file in files]

    def variance_fractions(self) -> np.ndarray | None:
        """Return the fraction of the variance along each principal direction, (N - 1,) for N snapshots.

        None if there are fewer than two snapshots, if all are equal, or, with a warning in the log, if one can't be
        read because the running stage 1 has removed it.
        """
        if self.snapshots is None or len(self.snapshots) < 2:
            return None
        try:
            gram, _ = gram_pass(WeightMatrix(self.snapshots))
        except CheckpointError as error:
            _log.warning(f"The spectrum of the snapshots is left out: {error}")
            return None
        variances = np.maximum(np.linalg.eigvalsh(centre_gram(gram))[:0:-1], 0.0)
        return variances / variances.sum() if variances.any() else None


@dataclass(frozen=True)
class StageTwoRecord:
    """What the files of a finished stage 2 run hold."""

    folder: Path
    config: StageTwoConfig
    result: StageTwoResult  # from result.json
    method: MethodReport  # what its method recorded
    basis: SubspaceBasis | None  # the basis that it searched in; None without one, or if its file no longer exists
    stage_1: StageOneRecord | None  # the run that it began from; None if that no longer exists
    missing_sources: tuple[str, ...]  # which of data, weights and basis are gone; a report adds the checkpoints

    @property
    def metric(self) -> Metric:
        """Return the main metric."""
        return self.result.main.metric

    def by_point(self, kind: str) -> dict[int, float]:
        """Return stage 2 epoch -> main metric where it was finite, with the start as epoch 0.

        Args:
            kind: with which BatchNorm statistics it was measured, ``AS_TRAINED`` or ``REESTIMATED``.

        Raises:
            KeyError: it was not measured with these statistics.
        """
        points = {0: self.result.main.by_point[START]} | self.result.by_epoch
        return {epoch: values[kind] for epoch, values in points.items() if values[kind] is not None}

    @property
    def stage_1_epochs(self) -> int:
        """Return the stage 1 epoch at which stage 2 began, or 0 if it is not known."""
        of_name = epochs_of_checkpoint(Path(str(self.result.sources["weights"])))
        if of_name is not None:
            return of_name.epoch
        return self.stage_1.last_epoch if self.stage_1 is not None else 0

    @property
    def final_weights(self) -> Path:
        """Return the path of the network to use, or of the folder that it was in if the file is gone."""
        folder = self.folder / STAGE_2_CHECKPOINTS
        return next(folder.glob("*-final.ckpt"), folder)

    @property
    def checkpoints(self) -> dict[str, Path]:
        """Return the checkpoints of all stage 2 points but the last, by name in the result; {} if one is gone."""
        endings = {point: f"{point}_*" if point.isdecimal() else point for point in self.result.main.by_point}
        del endings[FINAL]
        folder = self.folder / STAGE_2_CHECKPOINTS
        files = {point: list(folder.glob(f"*-{ending}.ckpt")) for point, ending in endings.items()}
        return {point: paths[0] for point, paths in files.items()} if all(files.values()) else {}

    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch, counted from stage 1's beginning, and the training loss from each of n records.

        Returns:
            Epochs and losses, float64 (n,) each; see ``MethodReport.losses``.
        """
        epochs, losses = self.method.losses()
        return self.stage_1_epochs + epochs, losses


def on_equal_terms(
    stage_1: StageOneRecord, stage_2: StageTwoRecord | None, metric: Metric
) -> tuple[dict[int, float], dict[int, float], str]:
    """Return the metric over both stages' epochs, all with the same kind of BatchNorm statistics.

    Args:
        stage_1: a stage 1.
        stage_2: a stage 2 that began from it; None for stage 1 alone.
        metric: the metric; with a stage 2, its main one.

    Returns:
        Epoch -> value for stage 1; the same for stage 2, whose epochs continue stage 1's; and a description of the
        statistics. These are re-estimated if both stages measured with re-estimated ones; the description is empty if
        neither did, as for a network without BatchNorm.
    """
    reestimate = [bool(stage_1.by_epoch(metric, REESTIMATED))]
    if stage_2 is not None:
        reestimate.append(stage_2.result.is_reestimated)
    kind = REESTIMATED if all(reestimate) else AS_TRAINED
    points = {} if stage_2 is None else stage_2.by_point(kind)
    first = 0 if stage_2 is None else stage_2.stage_1_epochs
    statistics = ""
    if any(reestimate):
        statistics = "BatchNorm re-estimated" if all(reestimate) else "statistics as trained"
    return stage_1.by_epoch(metric, kind), {first + epoch: value for epoch, value in points.items()}, statistics


def read_stage_1(checkpoints: Path) -> StageOneRecord:
    """Read a stage 1 run, which may still be training.

    Args:
        checkpoints: the run's checkpoint folder, such as ``device0_stage_1/checkpoint_stage_1``.

    Raises:
        RunError: the metrics beside ``checkpoints`` are missing or damaged.
        ConfigError: the run has not yet finished an epoch.
        SeriesError: its snapshots are not a readable series.
    """
    folder = checkpoints.parent
    snapshots = checkpoints / SNAPSHOTS
    epochs = list(numbered_records(folder / METRICS, "epoch"))
    if not epochs:
        raise ConfigError(f"{str(folder)!r} has not finished an epoch; there is nothing to report")
    has_snapshots = any(snapshots.glob("*-*_*.*"))  # the folder exists before the first snapshot
    return StageOneRecord(folder, epochs, CheckpointSeries.open(snapshots) if has_snapshots else None)


def read_stage_2(folder: Path) -> StageTwoRecord:
    """Read a finished stage 2 run, and its stage 1 if that still exists.

    Raises:
        ConfigError: ``folder`` is not a finished stage 2 run, or its result or configuration is damaged or of another
            version.
        RunError, CheckpointError, BasisMismatchError, SeriesError: the metrics, WEIGHTS, the basis or the snapshots
            are damaged.
    """
    path = folder / RESULT
    if not path.is_file():
        remedy = "finish stage 2 with --resume"
        if not (folder / STAGE_2_CHECKPOINTS).is_dir():
            remedy = "give the folder of a stage 1 or stage 2 run"
        raise ConfigError(f"RUN is {str(folder)!r}, which has no {RESULT}; {remedy}")
    result = StageTwoResult.read(path)
    config = load_config(StageTwoConfig, own_config(folder))
    method = report_of(folder, config, result)
    sources = {name: Path(source) for name, source in result.sources.items() if source}
    there = {name: source for name, source in sources.items() if source.exists()}
    # Another stage 1 or basis may have replaced the one that this stage 2 had.
    if "weights" in there and arrays_digest(read_checkpoint(there["weights"])) != result.digests["WEIGHTS"]:
        del there["weights"]
    basis = load_basis(there["basis"]) if result.basis and "basis" in there else None
    if basis and result.basis and basis.digest != result.basis["digest"]:
        basis = None
        del there["basis"]
    checkpoints = sources["weights"].parent
    has_stage_1 = checkpoints.name == STAGE_1_CHECKPOINTS and (checkpoints.parent / METRICS).is_file()
    stage_1 = read_stage_1(checkpoints) if has_stage_1 and "weights" in there else None
    missing = tuple(name for name in sources if name not in there)
    return StageTwoRecord(folder, config, result, method, basis, stage_1, missing)
