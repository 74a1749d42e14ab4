"""Make the set of this version's files: ``python -m tests.golden.make``. It belongs to a change of a format.

The runs are of the task that trains in milliseconds. Those that are unfinished died after their first epoch.
"""

import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.comparison.compare import compare
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.merging.record import record_path
from dimred.runs.run import Run
from dimred.subspace.fit import fit_basis
from tests.golden import metric
from tests.helpers.tiny_run import RunStage, dying, stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK

SET = Path(__file__).with_name("format_1")
NOT_READ_AGAIN = shutil.ignore_patterns(".lock", "mindspore.log", "*.png", "*.svg", "*.html")
STAGE_1: dict[str, Any] = {
    "epochs": 2,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0},
    "checkpoints": {"every_epochs": 1},
    "snapshots": {"per_epoch": 2, "first_epoch": 1, "keep": 4},
    "save_every_steps": 2,
    "reestimate_batches": 1,
}
SEARCH: dict[str, Any] = {"epochs": 2, "reestimate_batches": 1, "search": {"n_components": 2}}
COOLDOWN: dict[str, Any] = {"method": "cooldown", "epochs": 2, "reestimate_batches": 1}


def make(to: Path) -> None:
    """Write the set into an empty folder.

    ``stage_1``, ``search`` and ``cooldown`` are finished runs; those named ``*_unfinished`` died. ``series`` has the
    snapshots of ``stage_1`` as safetensors. ``merged.safetensors`` is a merge, ``merging.safetensors.merge`` what
    is left of one that was killed, and ``comparison`` has one row.
    """
    _run_twice(stage_1_run(StageOneConfig.model_validate(TASK | STAGE_1)), to / "stage_1")
    weights = to / "stage_1" / "checkpoint_stage_1" / "network-2_4.ckpt"
    snapshots = CheckpointSeries.open(weights.parent / "checkpoint_pca")
    series = CheckpointSeries.create(to / "series", format="safetensors")
    for path, entry in zip(snapshots.paths, snapshots.entries, strict=True):
        series.append(read_checkpoint(path), entry.step, entry.epoch)
    matrix = to / "pca_mat.npy"
    fit_basis(snapshots, 2, out=matrix)
    _run_twice(stage_2_run(StageTwoConfig.model_validate(TASK | SEARCH), weights, matrix), to / "search")
    _run_twice(stage_2_run(StageTwoConfig.model_validate(TASK | COOLDOWN), weights), to / "cooldown")
    dimred.merge(series.directory, to / "merged.safetensors", metric=metric.size, minimize=True)
    out = to / "merging.safetensors"
    dimred.merge(series.directory, out, metric=metric.size, minimize=True)
    _leave_scores(out, 3)
    compare(Path(), [to / "stage_1"], out=to / "comparison", methods=["last"])


def _run_twice(run: RunStage, out: Path) -> None:
    run(out, False)
    with dying(Run, "log_epoch"):
        run(out.with_name(f"{out.name}_unfinished"), False)


def _leave_scores(out: Path, n_scores: int) -> None:
    """Leave of a merge what a kill would have left after some scores."""
    out.unlink()
    record_path(out).unlink()
    scores = out.with_name(f"{out.name}.merge") / "scores.jsonl"
    header_and_scores = scores.read_text().splitlines(keepends=True)[: 1 + n_scores]
    scores.write_text("".join(header_and_scores))


if __name__ == "__main__":
    with TemporaryDirectory() as folder, chdir(folder):
        make(Path(folder))
        shutil.copytree(folder, SET, ignore=NOT_READ_AGAIN)
