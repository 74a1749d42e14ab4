"""The report of a run: ``dimred report``. The loss in the plane, which is in no file, is computed here."""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from dimred.build import build_data, build_loss, build_network
from dimred.config import StageTwoConfig, load_config
from dimred.errors import ConfigError
from dimred.evaluate.surface import loss_in_plane
from dimred.files.run_names import CONFIG, RESULT, SNAPSHOTS, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS
from dimred.report.page import make_report_folder, write_report, write_stage_1_report
from dimred.report.plots import PlanePoints, PlaneView, Surface, grid_around, plane_point
from dimred.report.record import StageTwoRecord, read_stage_1, read_stage_2
from dimred.run.device import set_up
from dimred.subspace.basis import SubspaceBasis
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


def report(folder: Path, out: Path, comparison: Path | None, grid: int, n_batches: int) -> Path:
    """Write the report of a finished stage 2 run, or of a stage 1 run as far as it is.

    Args:
        folder: the run's.
        out: a new folder, or one with an earlier report, which is replaced.
        comparison: ``compare.json``, to be shown too.
        grid: points along each side of the plane.
        n_batches: training batches on which the loss in the plane is evaluated.

    Returns:
        The page's path.

    Raises:
        ConfigError: the run is not finished, something it was made from is gone, or ``out`` holds something else.
    """
    if not (folder / RESULT).exists() and (folder / STAGE_1_CHECKPOINTS).is_dir():
        stage_1 = read_stage_1(folder / STAGE_1_CHECKPOINTS)
        make_report_folder(out)
        return write_stage_1_report(out, stage_1)
    run = read_stage_2(folder)
    summary = None if comparison is None else _read(comparison)
    settings = load_config(StageTwoConfig, folder / CONFIG)
    make_report_folder(out)
    set_up(settings.seed)
    plane = _view(run, run.basis, settings, grid, n_batches) if run.basis and run.basis.mean is not None else None
    return write_report(out, run, plane, summary)


def _read(comparison: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(comparison.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--compare is {str(comparison)!r}, which can't be read ({error})") from error
    return found


def _view(run: StageTwoRecord, basis: SubspaceBasis, settings: StageTwoConfig, grid: int, n_batches: int) -> PlaneView:
    """Where both stages were, and the loss of the network around these points."""
    network = build_network(settings)
    layout = WeightLayout.from_network(network)
    basis.check(layout)
    mean = np.asarray(basis.mean, np.float64)

    def points(epochs: list[int], paths: Iterable[Path]) -> PlanePoints:
        vectors = (
            layout.flatten(read_checkpoint(path, names=layout.names)) for path in paths
        )  # one in memory at a time
        along, off = zip(*(plane_point(basis, mean, vector) for vector in vectors), strict=True)
        return PlanePoints(epochs, np.array(along), np.array(off))

    series = run.stage_1.snapshots or CheckpointSeries.open(run.stage_1.folder / STAGE_1_CHECKPOINTS / SNAPSHOTS)
    snapshots = points([entry.epoch for entry in series.entries], series.paths)
    saved = {0: "start"} | {int(epoch): f"{epoch}_*" for epoch in run.result["accuracy_by_epoch"]}
    found = {
        run.stage_1.last_epoch + epoch: path
        for epoch, name in saved.items()
        for path in (run.folder / STAGE_2_CHECKPOINTS).glob(f"*-{name}.ckpt")
    }
    stops = points(list(found), found.values())
    search = stops.along[0] + run.coordinates()[:, :2]

    train = build_data(settings.data, Path(run.result["sources"]["data"]), "train").training_epoch(settings.seed, 0)
    batches: list[tuple[Tensor, ...]] = list(islice(train.create_tuple_iterator(num_epochs=1), n_batches))
    loss = loss_in_plane(build_loss(settings, network), batches, mean, np.asarray(basis.components[:2], np.float64))

    def surface(points: np.ndarray) -> Surface:
        first, second = grid_around(points, grid)
        return Surface(first, second, np.array([[loss(x, y) for x in first] for y in second]))

    searched = np.concatenate([stops.along, search])
    whole, near = surface(np.concatenate([snapshots.along, searched])), surface(searched)
    return PlaneView(whole, near, sum(len(batch[0]) for batch in batches), snapshots, stops, search)
