"""Write the files of a small finished run of both stages without training."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.layout import arrays_digest
from dimred.checkpoints.series import CheckpointSeries
from dimred.comparison.methods import METHODS
from dimred.io.checksums import write_checksummed
from dimred.io.file_format import COMPARED, CONFIGURATION
from dimred.run_files.metric import ACCURACY, Figures
from dimred.run_files.stage_two_result import ChoiceResult, MetricResult, StageTwoResult
from dimred.subspace.fit import fit_basis

N_WEIGHTS = 6


class RunFiles(NamedTuple):
    """The folders of the two stages."""

    stage_1: Path
    stage_2: Path


def write_run(folder: Path, epochs: int, per_epoch: int, first_epoch: int) -> RunFiles:
    """Write a finished stage 1, a stage 2 with a search of two steps, and the basis of that search.

    Args:
        folder: gets ``stage_1``, ``stage_2`` and ``pca_mat.npy``.
        epochs: epochs of stage 1.
        per_epoch: snapshots in each of its epochs from ``first_epoch`` on.
        first_epoch: the first epoch with snapshots.

    Returns:
        The folders of the two stages.
    """
    files = RunFiles(folder / "stage_1", folder / "stage_2")
    rng = np.random.default_rng(0)
    series = CheckpointSeries.create(files.stage_1 / "checkpoint_stage_1" / "checkpoint_pca", keep=None)
    for epoch in range(first_epoch, epochs + 1):
        for part in range(1, per_epoch + 1):
            vector = rng.normal(size=N_WEIGHTS).astype(np.float32)
            series.append({"weight": vector}, per_epoch * (epoch - 1) + part, epoch)
    weights = series.directory.parent / f"net-{epochs}_{per_epoch}.ckpt"
    write_checkpoint(weights, {"weight": np.zeros(N_WEIGHTS, np.float32)})
    basis = fit_basis(series, n_components=2, out=folder / "pca_mat.npy")
    _write_metrics(
        files.stage_1,
        [
            {"epoch": epoch, "loss": 2 / epoch, "metrics": accuracy(epoch / 100), "seconds": 1.5}
            | {"evaluation_seconds": 0.5}
            for epoch in range(1, epochs + 1)
        ],
    )
    step: dict[str, Any] = {"outcome": "accepted", "loss": 1.0, "loss_after": 0.9, "n_trials": 1}
    step |= {"captured_fraction": 0.1, "subspace_step": [0.1, 0.2]}
    step |= {"step_size": 1.0, "moved_inside": 0.05**0.5, "moved_outside": 0.001}
    _write_metrics(files.stage_2, [{"step": number} | step for number in (1, 2)])
    write_config(files.stage_2, "data: {eval_split: test}\nstage_2: {search: {n_components: 2}}\n")
    sources = {"data": folder, "weights": weights, "basis": folder / "pca_mat.npy"}
    (files.stage_2 / "checkpoint_stage_2").mkdir()
    (files.stage_2 / "checkpoint_stage_2" / "net-final.ckpt").touch()
    average = "uniform of 3 snapshots"
    candidates = [_candidate("last", 1, 0.6, 0.1), _candidate(average, 3, 0.5, 0.0)]
    chosen = [_candidate("average", 3, 0.5, 0.1), _candidate("1", 1, 0.4, 0.0)]
    points = {"average": {"as_trained": 0.62}, "start": {"as_trained": 0.6}, "1": {"as_trained": 0.65}}
    points["final"] = accuracy(0.65, 0.7)["accuracy"]
    StageTwoResult(
        epochs=1,
        sources={name: str(path) for name, path in sources.items()},
        metrics=[MetricResult(ACCURACY, points)],
        choices={
            "average": ChoiceResult(average, 3.0, candidates, 2, 0.9, 1.2),
            "kept": ChoiceResult("1", 1.0, chosen, 2, 0.9, 1.2),
        },
        basis=basis.in_short(2) | {"explained_variance": 0.9},
        digests={"WEIGHTS": arrays_digest(read_checkpoint(weights))},
        steps=2,
        totals={"accepted_steps": 2, "trials": 4, "n_forward": 6, "n_backward": 2},
        training_seconds=4.0,
    ).write(files.stage_2 / "result.json")
    return files


def accuracy(as_trained: float, reestimated: float | None = None) -> Figures:
    """Make the figures of the accuracy, as a record of a run has them."""
    return {"accuracy": {"as_trained": as_trained} | ({} if reestimated is None else {"reestimated": reestimated})}


def _candidate(name: str, effective_size: float, loss: float, behind: float) -> dict[str, Any]:
    """Make a row of a choice in ``result.json``; the metric falls as the loss rises."""
    found = {"name": name, "effective_size": effective_size, "loss": loss, "metric": 1 - loss}
    return found | {"behind": behind, "standard_error": behind / 10}


def write_compared(folder: Path, seed: int, method: str, test: float, at: int = 70, **changes: object) -> None:
    """Write what ``dimred compare`` leaves of one method, one seed, and one length of stage 1.

    Args:
        folder: the folder of the comparison.
        seed: seed of the stage 1.
        method: name of the method, a key of ``METHODS``.
        test: the re-estimated accuracy on ``test``.
        at: epochs of the stage 1.
        changes: other fields of the file, in place of those written here.
    """
    record = {
        "method": method,
        "title": METHODS[method].title,
        "seed": seed,
        "at": at,
        "passes": at + 2.0,
        "chosen": "epoch 1",
        "diverged": "",
        "seconds": 10.0,
        "val_loss": 0.5,
        "test_loss": 0.5,
        "metrics": [asdict(ACCURACY)],
        "batch_norm": True,
        "other_metrics": {},
        "val": 0.5,
        "test": 0.25,
        "val_reestimated": 0.75,
        "test_reestimated": test,
        "run": "a run",
        "data": "data",
    }
    (folder / f"seed_{seed}" / f"at_{at}").mkdir(parents=True, exist_ok=True)
    write_checksummed(folder / f"seed_{seed}" / f"at_{at}" / f"{method}.json", COMPARED, record | changes)


def _write_metrics(folder: Path, records: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "versions.json").write_text('{"dimred": "0"}')
    write_config(folder, "stage_1: {epochs: 1}\n")


def write_config(run: Path, text: str) -> None:
    """Write the configuration of a run, as the run itself does."""
    (run / "config.yaml").write_text(CONFIGURATION.sealed(text))
