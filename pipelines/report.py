"""Write a run's report: ``dimred report``.

No file holds the loss in the plane through both stages, so it is measured here.
"""

import shlex
from collections.abc import Callable, Sequence
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
from dimred.evaluation.predictions import class_name, count_classes
from dimred.launch.device import Target
from dimred.report.class_section import ClassView
from dimred.report.plots import PlanePoints, PlaneView
from dimred.report.run_page import make_report_folder, write_report, write_stage_1_report
from dimred.report.run_record import StageTwoRecord, read_stage_1, read_stage_2
from dimred.run_files.run_names import RESULT, STAGE_1_CHECKPOINTS, own_config
from dimred.run_files.stage_two_result import AVERAGE, START
from dimred.runs.begun import pins_of_data
from dimred.runs.device import set_up
from dimred.runs.steps import build_loss
from dimred.runs.task import Task, build_task
from dimred.train_step.mean_loss import MeanLoss
from dimred.train_step.statistics import batch_norms, moving_statistics
from dimred.vectors.parameters import from_arrays

_LEAST_ANGLE = 1e-5  # radians between two directions; float32 weights on a line make a smaller angle


def report(folder: Path, out: Path, grid: int, n_batches: int, device_target: Target = "CPU") -> Path:
    """Write the report on a finished stage 2 run, or on a stage 1 run so far.

    A part whose files are gone is left out, and the page says so.

    Args:
        folder: the run's folder.
        out: a new folder, or one with an earlier report to replace.
        grid: points along each side of the plane.
        n_batches: training batches on which the loss in the plane is evaluated.
        device_target: the kind of device that evaluates it.

    Returns:
        The page's path.

    Raises:
        ConfigError: stage 2 is not finished, stage 1 has no epoch yet, or ``out`` holds something else.
    """
    command = shlex.join(["dimred", "report", str(folder.resolve()), "--out", str(out.resolve())])
    if not (folder / RESULT).exists() and (folder / STAGE_1_CHECKPOINTS).is_dir():
        stage_1 = read_stage_1(folder / STAGE_1_CHECKPOINTS)
        make_report_folder(out, command)
        return write_stage_1_report(out, stage_1, load_config(StageOneConfig, own_config(folder)))
    run = read_stage_2(folder)
    if not run.checkpoints:
        run = replace(run, missing_sources=(*run.missing_sources, "checkpoints of stage 2"))
    config = run.config
    make_report_folder(out, command)
    task = None
    if "data" not in run.missing_sources:
        set_up(config.seed, device_target, mode=config.mode)
        splits = {"train", config.data.eval_split}
        task = build_task(config, Path(str(run.result.sources["data"])), splits=splits)
        then = run.result.digests
        now = pins_of_data(task.data, task.images)
        if any(then.get(name, pin.digest) != pin.digest for name, pin in now.items()):
            run = replace(run, missing_sources=(*run.missing_sources, "data"))
    plane = None
    classes = None
    if task is not None and "data" not in run.missing_sources and run.final_weights.is_file():
        classes = _classes(run, task)
    if task is not None and not run.missing_sources and run.stage_1 is not None and run.stage_1.snapshots:
        plane = _view(run, run.stage_1.snapshots, task, grid, n_batches)
    return write_report(out, run, plane, classes)


def _classes(run: StageTwoRecord, task: Task[StageTwoConfig]) -> ClassView | None:
    """Count how often the network to use is right on each class; None if the user brings a loss or metric."""
    config = task.config
    split = config.data.eval_split
    if config.loss is not None or config.metric is not None:
        return None
    path = run.final_weights
    from_arrays(list(task.network.get_parameters()), read_checkpoint(path), str(path))
    _, predictions = task.evaluator.metrics_and_predictions(split)
    n_classes = config.model.n_classes
    counts = count_classes(predictions, n_classes)
    names = [class_name(number, task.images[split].classes) for number in range(n_classes)]
    return ClassView(split, names, *counts)


def _view(
    run: StageTwoRecord, series: CheckpointSeries, task: Task[StageTwoConfig], grid: int, n_batches: int
) -> PlaneView | None:
    """Choose the plane, locate both stages in it, and evaluate the loss on a grid; None if its points form a line."""
    config = task.config
    network = task.network
    layout = WeightLayout.from_network(network)

    def mean(paths: Sequence[Path]) -> np.ndarray:
        return mean_vector(open_fitting(paths, layout), np.ones(len(paths)), layout)

    third = AVERAGE if AVERAGE in run.checkpoints else "mean"
    epochs = [path for point, path in run.checkpoints.items() if point.isdecimal()]
    if not epochs:  # nothing was trained
        return None
    three = ([run.checkpoints[START]], epochs[-1:], series.paths if third == "mean" else [run.checkpoints[AVERAGE]])
    corners = [mean(paths) for paths in three]
    directions = plane_directions(*corners)
    if directions is None:
        return None
    origin = corners[0]

    def points(paths: Sequence[Path]) -> PlanePoints:
        """Locate checkpoints, with one at a time in memory."""
        located = [plane_point(origin, directions, mean([path])) for path in paths]
        return PlanePoints(np.reshape([along for along, _ in located], (-1, 2)), np.array([off for _, off in located]))

    snapshots = points(series.paths)
    between = points(epochs[:-1])
    of_corners = np.array([plane_point(origin, directions, corner)[0] for corner in corners])
    train = task.images["train"].training_epoch(config.seed, 0)
    batches: list[tuple[Tensor, ...]] = list(islice(train.create_tuple_iterator(num_epochs=1), n_batches))
    loss = loss_in_plane(build_loss(config, network), batches, origin, directions)
    first, second = grid_around(np.concatenate([of_corners, snapshots.along, between.along]), grid)
    surface = np.array([[loss(x, y) for x in first] for y in second])
    n_images = sum(len(batch[0]) for batch in batches)
    has_batch_norm = bool(moving_statistics(network))
    return PlaneView(first, second, surface, n_images, has_batch_norm, third, of_corners, snapshots, between)


def loss_in_plane(
    loss: nn.Cell, batches: Sequence[tuple[Tensor, ...]], origin: np.ndarray, directions: np.ndarray
) -> Callable[[float, float], float]:
    """Make the function (x, y) -> mean loss over the batches at origin + x directions[0] + y directions[1].

    BatchNorm uses each batch's statistics, so the loss depends only on the weights; everything else is in evaluation
    mode. Every call changes the network's weights and statistics.

    Args:
        loss: network and loss in one cell; returns a batch's mean loss, or (sum, count); see ``MeanLoss``.
        batches: the batches, the same in every call.
        origin: the plane's origin, (M,).
        directions: its directions, (2, M).

    Returns:
        The function; it takes one forward pass over each batch.
    """
    layout = WeightLayout.from_network(loss)
    parameters = loss.trainable_params()
    mean_loss = MeanLoss(loss)
    mean_loss.set_train(False)
    for norm in batch_norms(loss):
        norm.set_train(True)

    def at(x: float, y: float) -> float:
        weights = (origin + x * directions[0] + y * directions[1]).astype(np.float32)
        from_arrays(parameters, layout.unflatten(weights), "the plane")
        return float(np.mean([float(mean_loss(*batch)[0].asnumpy()) for batch in batches]))

    return at


def plane_directions(origin: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray | None:
    """Return orthonormal directions (2, M) that span the plane through three points, by Gram-Schmidt; None for a line.

        u = second - origin,   v = third - origin;   rows u / |u| and r / |r| with r = v - (u'v / u'u) u

    Args:
        origin, second, third: the points, (M,) float64.
    """
    along = second - origin
    across = third - origin
    lengths = [np.linalg.norm(along), np.linalg.norm(across)]
    if not lengths[0]:
        return None
    first = along / lengths[0]
    across = across - (first @ across) * first
    if np.linalg.norm(across) <= _LEAST_ANGLE * lengths[1]:
        return None
    return np.stack([first, across / np.linalg.norm(across)])


def plane_point(origin: np.ndarray, directions: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the coordinates c (2,) that weights have in a plane, and their distance from it.

        c = D (w - origin),   distance = |w - origin - D'c|

    Args:
        origin: the plane's origin, (M,) float64.
        directions: the rows of D, (2, M), orthonormal.
        weights: the weights w, (M,) float64.
    """
    away = weights - origin
    along = directions @ away
    return along, float(np.linalg.norm(away - along @ directions))


def grid_around(points: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Make a grid that covers points in a plane, plus 15 % of their extent on each side.

    Args:
        points: the points' coordinates, (m, 2).
        n: number of grid lines along each direction.

    Returns:
        The grid lines' coordinates along the first and the second direction, (n,) each.
    """
    low = points.min(0)
    high = points.max(0)
    wider = 0.15 * np.maximum(high - low, 1e-9 + 0.2 * np.max(high - low))
    first, second = (np.linspace(low[axis] - wider[axis], high[axis] + wider[axis], n) for axis in (0, 1))
    return first, second
