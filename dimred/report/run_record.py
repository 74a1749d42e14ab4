"""What the files of a run say, read once, for a report."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError
from dimred.files.checksummed_json import read_checksummed
from dimred.files.metrics_file import read_metrics
from dimred.files.run_names import CONFIG, METRICS, RESULT, SNAPSHOTS, STAGE_1_CHECKPOINTS, VERSIONS
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.weights.series import CheckpointSeries

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class StageOneRecord:
    """A stage 1 run, finished or not.

    Attributes:
        folder: of the run.
        epochs: its metrics, one record an epoch.
        configurations: file -> its text.
        versions: name -> version.
    """

    folder: Path
    epochs: Records
    configurations: dict[str, str]
    versions: dict[str, str]

    @property
    def accuracies(self) -> dict[int, float]:
        """Epoch -> accuracy, of the epochs after which it was measured."""
        return {record["epoch"]: record["accuracy"] for record in self.epochs if record["accuracy"] is not None}

    @property
    def last_epoch(self) -> int:
        """How far it came."""
        return int(self.epochs[-1]["epoch"])

    @property
    def snapshots(self) -> Path:
        """The folder of the snapshots."""
        return self.folder / STAGE_1_CHECKPOINTS / SNAPSHOTS


@dataclass(frozen=True)
class RunRecord:
    """A stage 2 run and the stage 1 run that it began from.

    Attributes:
        folder: of stage 2.
        result: its ``result.json``.
        stage_1: the run that it began from.
        steps: stage 2's metrics, one record a step.
        configurations: file -> its text.
        versions: name -> version.
    """

    folder: Path
    result: dict[str, Any]
    stage_1: StageOneRecord
    steps: Records
    configurations: dict[str, str]
    versions: dict[str, str]

    @property
    def data(self) -> Path:
        """The data both stages saw."""
        return Path(self.result["sources"]["data"])

    @property
    def weights(self) -> Path:
        """Stage 1's checkpoint."""
        return Path(self.result["sources"]["weights"])

    @property
    def snapshots(self) -> Path:
        """The folder of stage 1's snapshots."""
        return self.weights.parent / SNAPSHOTS

    def snapshot_epochs(self) -> list[int]:
        """The epochs that the snapshots of the basis were taken in, one for each that is still in stage 1's folder."""
        if not self.snapshots.is_dir():
            return []
        names = {source.file for source in self.basis().snapshots}
        return [entry.epoch for entry in CheckpointSeries.open(self.snapshots).entries if entry.file in names]

    def basis(self) -> SubspaceBasis:
        """The basis of the search, checked."""
        return load_basis(Path(self.result["sources"]["basis"]))

    def coordinates(self) -> np.ndarray:
        """Where the steps of the search led, relative to its start, (n_steps + 1, k) float64."""
        moves = [np.asarray(step["subspace_step"], np.float64) for step in self.steps]
        return np.cumsum([np.zeros_like(moves[0]), *moves], axis=0)


def read_run(folder: Path) -> RunRecord:
    """Read a finished stage 2 run and its stage 1.

    Raises:
        ConfigError: ``folder`` is no finished stage 2 run, its result is damaged, or stage 1's folder is gone.
    """
    if not (folder / RESULT).is_file():
        raise ConfigError(
            f"RUN is {str(folder)!r}, which has no result.json; give the folder of a finished stage 2 run"
        )
    try:
        result = read_checksummed(folder / RESULT)
    except ValueError as error:
        raise ConfigError(f"{folder / 'result.json'} is damaged: {error}; stage 2's --resume writes it again") from None
    sources = result.get("sources") or {}
    for name in ("data", "weights", "basis"):
        if not sources.get(name) or not Path(sources[name]).exists():
            raise ConfigError(
                f"{folder / 'result.json'} says that {name} was {sources.get(name)!r}, which is not there any more; "
                "put it back"
            )
    stage_1 = read_stage_1(Path(sources["weights"]).parent.parent)
    steps = read_metrics(folder / METRICS)
    if not steps:
        raise ConfigError(f"RUN is {str(folder)!r}, whose search took no step; there is nothing to report")
    return RunRecord(
        folder=folder,
        result=result,
        stage_1=stage_1,
        steps=steps,
        configurations=stage_1.configurations | _configuration("stage 2", folder),
        versions=_versions(folder),
    )


def read_stage_1(folder: Path) -> StageOneRecord:
    """Read a stage 1 run.

    Raises:
        ConfigError: ``folder`` is none, or it has not finished an epoch.
    """
    if not (folder / METRICS).is_file():
        raise ConfigError(f"{str(folder)!r} has no metrics.jsonl; a report needs the folder of stage 1 as it was")
    epochs = read_metrics(folder / METRICS)
    if not epochs:
        raise ConfigError(f"{str(folder)!r} has not finished an epoch; there is nothing to report")
    return StageOneRecord(folder, epochs, _configuration("stage 1", folder), _versions(folder))


def _configuration(name: str, folder: Path) -> dict[str, str]:
    path = folder / CONFIG
    return {f"{name} ({path})": path.read_text(encoding="utf-8")} if path.is_file() else {}


def _versions(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / VERSIONS).read_text(encoding="utf-8"))
    return found
