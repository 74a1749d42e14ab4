"""RunRecord: what the files of a run say, read once, for a report."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError
from dimred.subspace.basis import SubspaceBasis, load_basis

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class RunRecord:
    """A stage 2 run and the stage 1 run that it began from.

    Attributes:
        folder: of stage 2.
        result: its ``result.json``.
        stage_1: folder of stage 1.
        epochs: stage 1's metrics, one record an epoch.
        steps: stage 2's metrics, one record a step.
        configurations: file -> its text.
        versions: name -> version.
    """

    folder: Path
    result: dict[str, Any]
    stage_1: Path
    epochs: Records
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
        return self.weights.parent / "checkpoint_pca"

    def basis(self) -> SubspaceBasis:
        """The basis of the search, checked."""
        return load_basis(Path(self.result["sources"]["basis"]))

    @property
    def branch_epoch(self) -> int:
        """The epoch of stage 1 after which stage 2 begins."""
        return int(self.epochs[-1]["epoch"])

    def coordinates(self) -> np.ndarray:
        """Where the steps of the search led, relative to its start, (n_steps + 1, k) float64."""
        moves = [np.asarray(step["subspace_step"], np.float64) for step in self.steps]
        return np.cumsum([np.zeros_like(moves[0]), *moves], axis=0)


def read_run(folder: Path) -> RunRecord:
    """Read a finished stage 2 run and its stage 1.

    Raises:
        ConfigError: ``folder`` is no finished stage 2 run, or stage 1's folder is gone.
    """
    if not (folder / "result.json").is_file():
        raise ConfigError(
            f"RUN is {str(folder)!r}, which has no result.json; give the folder of a finished stage 2 run"
        )
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    sources = result.get("sources") or {}
    for name in ("data", "weights", "basis"):
        if not sources.get(name) or not Path(sources[name]).exists():
            raise ConfigError(
                f"{folder / 'result.json'} says that {name} was {sources.get(name)!r}, which is not there any more; "
                "put it back, or correct the file"
            )
    stage_1 = Path(sources["weights"]).parent.parent
    if not (stage_1 / "metrics.jsonl").is_file():
        raise ConfigError(f"{str(stage_1)!r} has no metrics.jsonl; a report needs the folder of stage 1 as it was")
    steps = _records(folder / "metrics.jsonl")
    if not steps:
        raise ConfigError(f"RUN is {str(folder)!r}, whose search took no step; there is nothing to report")
    configurations = {
        f"{name} ({path})": path.read_text(encoding="utf-8")
        for name, path in (("stage 1", stage_1 / "config.yaml"), ("stage 2", folder / "config.yaml"))
        if path.is_file()
    }
    return RunRecord(
        folder=folder,
        result=result,
        stage_1=stage_1,
        epochs=_records(stage_1 / "metrics.jsonl"),
        steps=steps,
        configurations=configurations,
        versions=json.loads((folder / "versions.json").read_text(encoding="utf-8")),
    )


def _records(path: Path) -> Records:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
