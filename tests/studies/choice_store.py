"""Store the outputs of every candidate of a choice on ``val`` and ``test``, so that any rule can be judged afterwards.

    python -m tests.studies.choice_store DATA RUN --config FILE.yaml --at 40 --out store/digits_1_40.npz

RUN is a finished stage 1 with a full checkpoint and the snapshots of epoch ``--at``. Stage 2 runs from there, in a
folder beside RUN. Then every candidate is measured with BatchNorm re-estimated: stage 1's last weights, every uniform
window and the profiles around the best one, and stage 2's epochs and their means. ``--weights`` measures the full
checkpoint alone, for a rival such as plain training. ``--snapshot`` measures the snapshot of epoch ``--at`` alone, for
schedule-free training, whose averaged point it is. ``--last-epoch`` measures the last epoch of stage 2 alone.

The file has ``names``, ``effective_sizes`` and ``n_images`` (samples forwarded to measure one candidate). Each split
has ``{split}_labels`` and ``{split}_logits``, float16 (candidates, n, classes). A text has ``{split}_losses``, float32
(candidates, n), in place of logits. ``choice_rules.py`` reads the file.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.averaging.windows import Window, effective_size, profiles_around, uniform_windows
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.evaluation.averages import SnapshotAverages
from dimred.evaluation.scores import means_of_samples, score_batches
from dimred.io.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS, full_checkpoints
from dimred.runs.device import set_up
from dimred.runs.task import build_task
from dimred.train_step.modes import evaluating

SPLITS = ("train", "val", "test")
KEPT = 60  # snapshots that a run of the recipe has at its end


class Weights(NamedTuple):
    """A candidate: its name, the effective size, and its weights (M,)."""

    name: str
    effective_size: float
    weights: np.ndarray


class Measuring:
    """A network with the splits of its data, which are read once."""

    def __init__(self, one: StageOneConfig, two: StageTwoConfig, data: Path) -> None:
        measuring = {"data": two.data, "metric": two.metric, "reestimate_batches": two.reestimate_batches}
        task = build_task(one.model_copy(update=measuring), data, splits=SPLITS)
        images, self.network, self.scores, self.evaluator = task.images, task.network, task.scores, task.evaluator
        self.batches = {
            split: list(images[split].evaluation().create_tuple_iterator(num_epochs=1)) for split in SPLITS[1:]
        }
        self.n_images = images["val"].n_images
        if self.evaluator.has_batch_norm:
            self.n_images += two.reestimate_batches * two.data.batch_size

    def put(self, weights: np.ndarray) -> None:
        self.evaluator.put(weights)

    def outputs(self, split: str) -> tuple[str, np.ndarray]:
        """Return ``logits``, float16 (n, classes), or for a text ``losses``, float32 (n,)."""
        with evaluating(self.network):
            logits = [self.network(*inputs).asnumpy() for *inputs, _ in self.batches[split]]
        if logits[0].ndim == 2:
            return "logits", np.concatenate(logits).astype(np.float16)
        [found] = score_batches(self.network, _Batches(self.batches[split]), self.scores.loss)
        return "losses", means_of_samples(found).astype(np.float32)

    def labels(self, split: str) -> np.ndarray:
        return np.concatenate([labels.asnumpy() for *_, labels in self.batches[split]])

    def mean_loss(self, split: str) -> float:
        [found] = score_batches(self.network, _Batches(self.batches[split]), self.scores.loss)
        return float(means_of_samples(found).mean())


class _Batches(NamedTuple):
    batches: list[Any]

    def create_tuple_iterator(self, num_epochs: int = 1) -> Iterator[Any]:
        return iter(self.batches)


def _vector(measuring: Measuring, file: Path) -> np.ndarray:
    layout = measuring.evaluator.layout
    return layout.flatten({name: array for name, array in read_checkpoint(file).items() if name in layout.names})


def _points(stage_2: Path) -> dict[int, Path]:
    """Find the files of stage 2's epochs: epoch -> path, in order."""
    points = {int(p.stem.rpartition("-")[2].partition("_")[0]): p for p in stage_2.glob("*-*_*.ckpt")}
    return dict(sorted(points.items()))


def _last_epoch(measuring: Measuring, stage_2: Path) -> Weights:
    *_, (epoch, file) = _points(stage_2).items()
    return Weights(f"epoch {epoch}", 1.0, _vector(measuring, file))


def candidates(measuring: Measuring, run: Path, at: int, stage_2: Path) -> Iterator[Weights]:
    """Yield stage 1's last weights, its averages, stage 2's epochs and their means."""
    layout, vector = measuring.evaluator.layout, partial(_vector, measuring)
    yield Weights("last", 1.0, vector(full_checkpoints(run / STAGE_1_CHECKPOINTS)[at]))
    series = CheckpointSeries.open(run / STAGE_1_CHECKPOINTS / SNAPSHOTS).select(until_epoch=at)
    averages = SnapshotAverages(dict(zip(series.steps[-KEPT:], series.paths[-KEPT:], strict=True)), layout)
    losses = dict[Window, float]()

    def average(window: Window) -> Weights:
        size = effective_size(window.coefficients(averages.steps))
        return Weights(window.name(averages.steps), size, averages.of(window))

    n = len(averages.steps)
    for window in (one for one in uniform_windows(n) if one.end - one.first >= (2 if one.end == n else 5)):
        yield average(window)
        losses[window] = measuring.mean_loss("val")  # the caller has put this window's weights meanwhile
    yield from map(average, profiles_around(min(losses, key=lambda window: losses[window])))
    points = _points(stage_2)
    epochs = list(points)
    for epoch in epochs:
        yield Weights(f"epoch {epoch}", 1.0, vector(points[epoch]))
    means = SnapshotAverages({epoch: points[epoch] for epoch in epochs}, layout)
    for window in (one for one in uniform_windows(len(epochs)) if one.end == len(epochs) > one.first + 1):
        size = effective_size(window.coefficients(epochs))
        yield Weights(f"mean of epochs {epochs[window.first]} to {epochs[-1]}", size, means.of(window))


def run_stage_2(data: Path, run: Path, at: int, config: Path, options: list[str]) -> Path:
    """Run stage 2 from an epoch of stage 1, unless that is done, and return the folder of its points."""
    out = run.with_name(f"{run.name}_stage_2_at_{at}")
    weights = full_checkpoints(run / STAGE_1_CHECKPOINTS)[at]
    command = [
        sys.executable, "-m", "dimred.pipelines.stage_2", data, weights, "--config", config, "--out", out, "--resume",
        *(f"--set={option}" for option in options),
    ]  # fmt: skip
    with out.with_suffix(".log").open("a") as log:
        subprocess.run(list(map(str, command)), check=True, stdout=log, stderr=log)
    return out / STAGE_2_CHECKPOINTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--config", type=Path, required=True, help="YAML file of both stages")
    parser.add_argument("--at", type=int, required=True, help="epoch of stage 1")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], help="override a key of stage 2's configuration")
    parser.add_argument("--weights", action="store_true", help="measure the full checkpoint alone")
    parser.add_argument("--snapshot", action="store_true", help="measure the snapshot of the epoch alone")
    parser.add_argument("--last-epoch", action="store_true", help="measure the last epoch of stage 2 alone")
    arguments = parser.parse_args()
    run, at, options = arguments.run, arguments.at, arguments.set
    one = load_config(StageOneConfig, run / "config.yaml")
    two = load_config(StageTwoConfig, arguments.config, options).with_epochs_after(at)
    set_up(one.seed)
    measuring = Measuring(one, two, arguments.data)
    layout = measuring.evaluator.layout
    folder = run / STAGE_1_CHECKPOINTS
    if arguments.weights or arguments.snapshot:
        files = {s.epoch: s.path for s in _snapshots(folder)} if arguments.snapshot else full_checkpoints(folder)
        arrays = read_checkpoint(files[at])
        found = iter([Weights(run.name, 1.0, layout.flatten({name: arrays[name] for name in layout.names}))])
    else:
        stage_2 = run_stage_2(arguments.data, run, at, arguments.config, [*options, f"seed={one.seed}"])
        found = iter([_last_epoch(measuring, stage_2)])
        if not arguments.last_epoch:
            found = candidates(measuring, run, at, stage_2)
    names, sizes, outputs = [], [], dict[str, list[np.ndarray]]()
    for candidate in found:
        measuring.put(candidate.weights)
        names.append(candidate.name)
        sizes.append(candidate.effective_size)
        for split in SPLITS[1:]:
            kind, values = measuring.outputs(split)
            outputs.setdefault(f"{split}_{kind}", []).append(values)
    arrays = {name: np.stack(values) for name, values in outputs.items()}
    if "val_logits" in arrays:
        arrays |= {f"{split}_labels": measuring.labels(split) for split in SPLITS[1:]}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        arguments.out, names=np.array(names), effective_sizes=np.array(sizes), n_images=measuring.n_images, **arrays
    )


class _Snapshot(NamedTuple):
    epoch: int
    path: Path


def _snapshots(folder: Path) -> list[_Snapshot]:
    series = CheckpointSeries.open(folder / SNAPSHOTS)
    return [_Snapshot(one.epoch, path) for one, path in zip(series.entries, series.paths, strict=True)]


if __name__ == "__main__":
    main()
