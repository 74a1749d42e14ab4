"""Measure a checkpoint or an average on a split of DATA: the work of ``dimred eval``."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig, load_config
from dimred.errors import ConfigError
from dimred.evaluation.measures import OfWholeSplit
from dimred.evaluation.predictions import ClassCounts, Predictions, class_name, count_classes, predictions_as_csv
from dimred.io.atomic import atomic_write
from dimred.launch.device import Target
from dimred.run_files.metric import AS_TRAINED, REESTIMATED, Figures, Metric
from dimred.run_files.run_names import STAGE_2_CHECKPOINTS, named_weights, own_config
from dimred.runs.device import set_up
from dimred.runs.task import Task, build_task
from dimred.train_step.optimizer_state import check_no_gradient_point
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.parameters import first_not_finite, from_arrays, to_arrays

_log = logging.getLogger(__name__)


class Classes(NamedTuple):
    """How a classifier does on each class.

    Attributes:
        names: names of the first classes; the others have numbers.
        counts: items and confusions of the classes.
        kind: the BatchNorm statistics that the network had, ``AS_TRAINED`` or ``REESTIMATED``.
    """

    names: Sequence[str]
    counts: ClassCounts
    kind: str

    def record(self) -> dict[str, Any]:
        """Return the accuracy of each class that has items, and the confusions, for JSON."""
        n_items, n_correct, confusions = self.counts
        accuracies = [
            {"class": class_name(number, self.names), "items": items, "accuracy": correct / items}
            for number, (items, correct) in enumerate(zip(n_items.tolist(), n_correct.tolist(), strict=True))
            if items
        ]
        pairs = [
            {"label": class_name(label, self.names), "prediction": class_name(predicted, self.names), "items": items}
            for label, predicted, items in confusions
        ]
        return {"statistics": self.kind, "accuracy": accuracies, "confusions": pairs}


class Evaluation(NamedTuple):
    """The measurements of a network.

    Attributes:
        split: the split.
        metrics: the metrics, the main one first.
        figures: name of the metric -> kind of BatchNorm statistics -> value.
        n_batches: training batches over which the statistics were re-estimated; None if they were not.
        classes: how the network does on each class; None with a metric of the user's own.
        is_of_whole_split: whether the metric is one number for the whole split, rather than a mean over samples.
    """

    split: str
    metrics: tuple[Metric, ...]
    figures: Figures
    n_batches: int | None
    classes: Classes | None
    is_of_whole_split: bool

    def record(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        record: dict[str, Any] = {"split": self.split, "metrics": self.figures}
        if self.n_batches is not None:
            record["batches"] = self.n_batches
        if self.classes is not None:
            record["classes"] = self.classes.record()
        return record


def evaluate(
    config: StageConfig,
    data: Path,
    weights: Path,
    device_target: Target = "CPU",
    *,
    save: Path | None = None,
    predictions: Path | None = None,
) -> Evaluation:
    """Measure weights on ``data.eval_split`` with their own BatchNorm statistics, and with re-estimated ones.

    Weights without statistics, such as a merge of snapshots, are measured with re-estimated ones alone. Classes and
    predictions are taken with the network's own statistics, if it has them.

    Args:
        config: the keys that both stages share.
        data: DATA, as the user typed it.
        weights: the checkpoint.
        device_target: the kind of device to compute on, made ready by the caller.
        save: a new file for the network with re-estimated statistics; None for none.
        predictions: a new CSV file with a line for each sample; None for none.

    Raises:
        CheckpointError: the weights can't be read, or don't fit the network.
        ConfigError, DataError: from ``build_task``; or ``predictions`` is given, and the labels are not classes.
    """
    arrays = read_checkpoint(weights)
    named = named_weights("WEIGHTS", weights)
    check_no_gradient_point(arrays, named)
    set_up(config.seed, device_target, mode=config.mode)
    split = config.data.eval_split
    task = build_task(config, data, splits={"train", split})
    if predictions is not None:
        _check_labels(task, split)
    has_statistics = _load(task, arrays, named)
    evaluator = task.evaluator
    figures: Figures = {metric.name: {} for metric in task.metrics}
    predicted: dict[str, Predictions] = {}

    def note(kind: str) -> None:
        if config.metric is None or predictions is not None:
            values, predicted[kind] = evaluator.metrics_and_predictions(split)
        else:
            values = evaluator.metrics(split)
        for metric, value in zip(task.metrics, values, strict=True):
            figures[metric.name][kind] = value

    if has_statistics:
        note(AS_TRAINED)
    n_batches = None
    if evaluator.has_batch_norm:
        n_batches = evaluator.reestimate()
        note(REESTIMATED)
    images = task.images[split]
    classes = None
    for kind, of_samples in list(predicted.items())[:1]:
        classes = Classes(images.classes, count_classes(of_samples, config.model.n_classes), kind)
        if predictions is not None:
            text = predictions_as_csv(of_samples, images.sample_names(), images.classes)
            atomic_write(predictions, text.encode(errors="surrogateescape"))  # a file's name need not be UTF-8
    if save is not None:
        write_checkpoint(save, to_arrays(task.network.get_parameters()))
    is_of_whole_split = isinstance(task.scores.metrics[0], OfWholeSplit)
    return Evaluation(split, task.metrics, figures, n_batches, classes, is_of_whole_split)


def _check_labels(task: Task[StageConfig], split: str) -> None:
    """Check on the first batch that each sample's label is one class number."""
    *_, labels = next(task.images[split].evaluation().create_tuple_iterator(num_epochs=1))
    if labels.ndim != 1 or labels.dtype != ms.int32:
        raise ConfigError(
            f"--predictions writes the class of each sample, but the labels of {len(labels)} samples are "
            f"{labels.dtype} of the shape {labels.shape}; leave it out"
        )


def _load(task: Task[StageConfig], arrays: dict[str, Any], named: str) -> bool:
    """Load the weights, and return whether they came with statistics; warn of a number that is not finite."""
    statistics = {value.name for value in moving_statistics(task.network)}
    absent = statistics if statistics.isdisjoint(arrays) else set()
    parameters = [value for value in task.network.get_parameters() if value.name not in absent]
    from_arrays(parameters, arrays, named)
    name = first_not_finite(parameters)
    if name is not None:
        _log.warning(f"{named} has {name!r} with an infinite number or NaN; a metric measured with it means nothing")
    return not absent


def choice_warning(run: Path, split: str) -> str | None:
    """Return a warning if a split also chose a run's network; otherwise None."""
    stage = StageTwoConfig if (run / STAGE_2_CHECKPOINTS).is_dir() else StageOneConfig
    return load_config(stage, own_config(run), [f"data.eval_split={split}"]).eval_split_warning()
