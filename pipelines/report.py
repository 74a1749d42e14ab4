"""Write the report of a run: ``dimred report``.

Two things are not in any file and are measured here: stage 1's last weights with re-estimated BatchNorm statistics, and
the loss in the plane of the first two principal directions.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from dimred.averaging.mean import mean_vector, open_fitting
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.errors import SeriesError
from dimred.io.metric import AS_TRAINED
from dimred.io.run_names import CONFIG, RESULT, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS
from dimred.report.plots import PlanePoints, PlaneView, Surface
from dimred.report.record import StageTwoRecord, read_stage_1, read_stage_2
from dimred.report.run_page import make_report_folder, write_report, write_stage_1_report
from dimred.runs.begun import pins_of_data
from dimred.runs.device import set_up
from dimred.runs.steps import build_loss
from dimred.runs.task import Task, build_task
from dimred.subspace.basis import SubspaceBasis
from dimred.subspace.fit import fit_basis
from dimred.train_step.counted import WeighedLoss
from dimred.train_step.network_state import batch_norms, moving_statistics
from dimred.vectors.parameters import from_arrays

_log = logging.getLogger(__name__)


def report(folder: Path, out: Path, grid: int, n_batches: int) -> Path:
    """Write the report of a finished stage 2 run, or of a stage 1 run so far.

    A part whose files are gone is left out, and the page says so.

    Args:
        folder: the run's folder.
        out: a new folder, or one with an earlier report, which is replaced.
        grid: points along each side of the plane.
        n_batches: training batches on which the loss in the plane is evaluated.

    Returns:
        The page's path.

    Raises:
        ConfigError: stage 2 is not finished, stage 1 has no epoch yet, or ``out`` holds something else.
    """
    if not (folder / RESULT).exists() and (folder / STAGE_1_CHECKPOINTS).is_dir():
        stage_1 = read_stage_1(folder / STAGE_1_CHECKPOINTS)
        make_report_folder(out)
        _say([stage_1.gaps])
        return write_stage_1_report(out, stage_1, load_config(StageOneConfig, folder / CONFIG))
    run = read_stage_2(folder)
    if not _stops(run):
        run = replace(run, missing_sources=(*run.missing_sources, "checkpoints of stage 2"))
    settings = load_config(StageTwoConfig, folder / CONFIG)
    make_report_folder(out)
    _say(run.gaps)
    set_up(settings.seed)
    task = None
    if "data" not in run.missing_sources:
        splits = {"train", settings.data.eval_split}
        task = build_task(settings, Path(str(run.result.sources["data"])), splits=splits)
        then, now = run.result.digests, pins_of_data(task.data, task.images)
        if any(then.get(name, pin.digest) != pin.digest for name, pin in now.items()):
            task, run = None, replace(run, missing_sources=(*run.missing_sources, "data"))
    last = None if task is None or "weights" in run.missing_sources else _measure_last(run, task)
    snapshots = run.stage_1.snapshots if run.stage_1 else None
    plane = None
    if snapshots and task is not None and not run.missing_sources:
        basis = run.basis
        if basis is None and len(snapshots) > 2:
            with suppress(SeriesError):  # they are all equal, or on a line
                basis = fit_basis(snapshots, 2, network=task.network)
        if basis is not None and basis.mean is not None and len(basis.components) > 1:
            plane = _view(run, basis, snapshots, task, grid, n_batches)
    return write_report(out, run, settings, last, plane)


def _say(warnings: Iterable[str | None]) -> None:
    for warning in filter(None, warnings):
        _log.warning(warning)


def _measure_last(run: StageTwoRecord, task: Task[StageTwoConfig]) -> float:
    """Measure stage 1's last weights as stage 2 measured the network it kept."""
    from_arrays(task.network.get_parameters(), read_checkpoint(str(run.result.sources["weights"])), "WEIGHTS")
    if task.settings.reestimate_batch_norm and task.evaluator.has_batch_norm:
        task.evaluator.reestimate()
    return task.evaluator.metrics(task.settings.data.eval_split)[0]


def _stops(run: StageTwoRecord) -> list[Path]:
    """Return the checkpoints of stage 2's start and epochs; none if one is gone, as the path would begin elsewhere."""
    names = ["start", *(f"{epoch}_*" for epoch in run.by_point(AS_TRAINED) if epoch)]
    paths = [[*(run.folder / STAGE_2_CHECKPOINTS).glob(f"*-{name}.ckpt")] for name in names]
    return [path for of_name in paths for path in of_name] if all(paths) else []


def _view(
    run: StageTwoRecord,
    basis: SubspaceBasis,
    series: CheckpointSeries,
    task: Task[StageTwoConfig],
    grid: int,
    n_batches: int,
) -> PlaneView:
    """Locate both stages in the plane, and evaluate the loss on grids around them."""
    layout = WeightLayout.from_network(task.network)
    basis.check(layout)
    mean = np.asarray(basis.mean, np.float64)

    def points(paths: Iterable[Path]) -> PlanePoints:
        vectors = (
            mean_vector(open_fitting([path], layout), np.ones(1), layout) for path in paths
        )  # one in memory at a time
        along, off = zip(*(plane_point(basis, mean, vector) for vector in vectors), strict=True)
        return PlanePoints(np.array(along), np.array(off))

    snapshots = points(series.paths)
    stops = points(_stops(run))
    has_path = run.basis is not None and not run.gaps  # its points are sums of all steps before them
    search = stops.along[0] + run.coordinates()[:, :2] if has_path else stops.along

    settings, network = task.settings, task.network
    train = task.images["train"].training_epoch(settings.seed, 0)
    batches: list[tuple[Tensor, ...]] = list(islice(train.create_tuple_iterator(num_epochs=1), n_batches))
    loss = loss_in_plane(build_loss(settings, network), batches, mean, np.asarray(basis.components[:2], np.float64))

    def surface(points: np.ndarray) -> Surface:
        first, second = grid_around(points, grid)
        return Surface(first, second, np.array([[loss(x, y) for x in first] for y in second]))

    of_search = np.concatenate([stops.along, search])
    whole, near = surface(np.concatenate([snapshots.along, of_search])), surface(of_search)
    n_images, has_batch_norm = sum(len(batch[0]) for batch in batches), bool(moving_statistics(network))
    return PlaneView(whole, near, n_images, has_batch_norm, snapshots, stops, search)


def loss_in_plane(
    loss: nn.Cell, batches: Sequence[tuple[Tensor, ...]], origin: np.ndarray, directions: np.ndarray
) -> Callable[[float, float], float]:
    """Make the function (x, y) -> mean loss over the batches at origin + x directions[0] + y directions[1].

    BatchNorm uses each batch's own statistics, so that the loss depends on the weights alone; everything else is in
    evaluation mode. Every call changes the network's weights and statistics.

    Args:
        loss: network and loss in one cell; returns the mean loss of a batch, or (sum, count), see ``WeighedLoss``.
        batches: the batches, the same in every call.
        origin: the plane's origin, (M,).
        directions: its directions, (2, M).

    Returns:
        The function; it takes one forward pass over each batch.
    """
    layout, parameters = WeightLayout.from_network(loss), loss.trainable_params()
    mean_loss = WeighedLoss(loss, weighs=False)
    mean_loss.set_train(False)
    for norm in batch_norms(loss):
        norm.set_train(True)

    def at(x: float, y: float) -> float:
        weights = (origin + x * directions[0] + y * directions[1]).astype(np.float32)
        from_arrays(parameters, layout.unflatten(weights), "the plane")
        return float(np.mean([float(mean_loss(*batch)[0].asnumpy()) for batch in batches]))

    return at


def plane_point(basis: SubspaceBasis, mean: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the coordinates (2,) of weights (M,) in the plane mean + span(P[:2]), and the distance from that plane.

    With the rows P of the basis and c = P[:2] (w - mean), the distance is |w - mean - P[:2]' c|.

    Args:
        basis: a basis of at least two components.
        mean: the plane's origin, (M,) float64.
        weights: the weights w, (M,).
    """
    away = np.asarray(weights, np.float64) - mean
    plane = np.asarray(basis.components[:2], np.float64)
    along = plane @ away
    return along, float(np.linalg.norm(away - along @ plane))


def grid_around(points: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Make a grid that holds some points of a plane, with a margin on each side of 15 % of their extent.

    Args:
        points: coordinates of the points, (m, 2).
        n: number of grid lines along each direction.

    Returns:
        The coordinates of the lines along the first and the second direction, (n,) each.
    """
    low, high = points.min(0), points.max(0)
    wider = 0.15 * np.maximum(high - low, 1e-9 + 0.2 * np.max(high - low))
    first, second = (np.linspace(low[axis] - wider[axis], high[axis] + wider[axis], n) for axis in (0, 1))
    return first, second
