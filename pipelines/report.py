"""The report of a run: ``dimred report``. The loss in the plane, which no file has, is computed here."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from dimred.build import build_data, build_loss, build_network
from dimred.config import StageTwoConfig, load_config
from dimred.errors import ConfigError
from dimred.evaluate.surface import loss_in_plane
from dimred.files.run_names import CONFIG, RESULT, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS
from dimred.report.plane import PlanePoints, Surface, grid_around, plane_point
from dimred.report.report import PlaneView, write_report, write_stage_1_report
from dimred.report.run_record import RunRecord, read_run, read_stage_1
from dimred.run.device import set_up
from dimred.run.folder import run_folder
from dimred.subspace.basis import SubspaceBasis
from dimred.subspace.plan import sample_gram
from dimred.subspace.spectrum import centre_gram
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.matrix import WeightMatrix
from dimred.weights.series import CheckpointSeries


def report(folder: Path, out: Path, comparison: Path | None, grid: int, n_batches: int) -> Path:
    """Write the report of a finished stage 2 run, or of a stage 1 run as far as it is.

    Args:
        folder: the run's.
        out: a new folder.
        comparison: ``compare.json``, to be shown too.
        grid: points along each side of the plane.
        n_batches: training batches on which the loss in the plane is evaluated.

    Returns:
        The page's path.

    Raises:
        ConfigError: the run is not finished, or something it was made from is gone.
    """
    if not (folder / RESULT).exists() and (folder / STAGE_1_CHECKPOINTS).is_dir():
        return _stage_1(folder, out)
    run = read_run(folder)
    summary = None if comparison is None else _read(comparison)
    settings = load_config(StageTwoConfig, folder / CONFIG)
    basis = run.basis()
    with run_folder(out):
        set_up(settings.seed)
        plane = None if basis.mean is None else _view(run, settings, basis, grid, n_batches)
        return write_report(out, run, basis.explained_variance_ratio, plane, summary)


def _stage_1(folder: Path, out: Path) -> Path:
    run = read_stage_1(folder)
    series = CheckpointSeries.open(run.snapshots) if run.snapshots.is_dir() else None
    epochs = [] if series is None else [entry.epoch for entry in series.entries]
    shares = None
    if series is not None and len(series) > 1:
        variances = np.linalg.eigvalsh(centre_gram(sample_gram(WeightMatrix(series))))[:0:-1]
        shares = np.maximum(variances, 0.0) / variances.sum()
    with run_folder(out):
        return write_stage_1_report(out, run, epochs, shares)


def _read(comparison: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(comparison.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--compare is {str(comparison)!r}, which can't be read ({error})") from error
    return found


def _view(run: RunRecord, settings: StageTwoConfig, basis: SubspaceBasis, grid: int, n_batches: int) -> PlaneView:
    """Everything of the plane's pictures."""
    network = build_network(settings)
    layout = WeightLayout.from_network(network)
    basis.check(layout)
    mean = np.asarray(basis.mean, np.float64)
    series = CheckpointSeries.open(run.snapshots)
    snapshots = _points(basis, mean, layout, series.paths)
    names = {int(epoch): path for epoch in run.result["accuracy_by_epoch"] for path in _checkpoint(run, f"-{epoch}_*")}
    stops = _points(basis, mean, layout, [*_checkpoint(run, "-start"), *names.values()])
    search = stops.along[0] + run.coordinates()[:, :2]
    train = build_data(settings.data, run.data, "train")
    batches: list[tuple[Tensor, ...]] = list(
        islice(train.training_epoch(settings.seed, 0).create_tuple_iterator(num_epochs=1), n_batches)
    )
    at = loss_in_plane(build_loss(settings, network), batches, mean, np.asarray(basis.components[:2], np.float64))

    def surface(points: np.ndarray) -> Surface:
        first, second = grid_around(points, grid)
        loss = np.array([[at(x, y) for x in first] for y in second])
        return Surface(first, second, loss, sum(len(batch[0]) for batch in batches))

    searched = np.concatenate([stops.along, search])
    return PlaneView(
        surface(np.concatenate([snapshots.along, searched])), surface(searched),
        snapshots, [entry.epoch for entry in series.entries],
        stops, [run.stage_1.last_epoch, *(run.stage_1.last_epoch + epoch for epoch in names)], search,
    )  # fmt: skip


def _checkpoint(run: RunRecord, ending: str) -> list[Path]:
    return list((run.folder / STAGE_2_CHECKPOINTS).glob(f"*{ending}.ckpt"))[:1]


def _points(basis: SubspaceBasis, mean: np.ndarray, layout: WeightLayout, paths: Any) -> PlanePoints:
    found = [
        plane_point(basis, mean, layout.flatten(read_checkpoint(path, names=layout.names))) for path in paths
    ]  # one network in memory at a time
    return PlanePoints(np.array([along for along, _ in found]), np.array([off for _, off in found]))
