"""Try a user's own network, data, loss and metric on a batch before anything expensive."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindspore import Tensor, nn

from dimred.config import StageConfig
from dimred.data.batches import Batches
from dimred.errors import ConfigError, DataError, DimredError, shown
from dimred.evaluation.measures import MeanOfItems, Measure, Scores
from dimred.evaluation.scores import values_of
from dimred.models.factory import CLASSES_REMEDY
from dimred.models.first_layer import describe_first_layer
from dimred.runs.steps import mean_loss
from dimred.train_step.modes import evaluating


def check_scores(config: StageConfig, network: nn.Cell, scores: Scores, images: Mapping[str, Batches]) -> None:
    """Try loss and metric on the first batch of ``train`` and of the evaluation split; change nothing.

    Every rank that has samples of both splits tries them, because work on rank 0 alone may not call a cell (see
    ``Ranks.run_on_rank_zero``).

    Raises:
        ConfigError: network, loss or metric fails, or returns something it must not; or there is not one output for
            each class, although the built-in loss or metric is used.
        DataError: the built-in loss or metric can't use the labels.
    """
    if min(images[split].n_images for split in ("train", config.data.eval_split)) <= images["train"].rank:
        return
    trained: list[tuple[str, str | None, Measure[Any]]] = [("loss", config.loss, _TrainedLoss(mean_loss(config)))]
    measured: list[tuple[str, str | None, Measure[Any]]] = [("loss", config.loss, MeanOfItems(scores.loss))]
    measured += [("metric", config.metric, metric) for metric in scores.metrics]
    for split, of_split in (("train", trained), (config.data.eval_split, measured)):
        *inputs, labels = next(images[split].evaluation().create_tuple_iterator(num_epochs=1))
        outputs = _outputs_of(network, config.model.name, inputs, split)
        shapes = _shapes(outputs if isinstance(outputs, tuple | list) else [outputs])
        batch = (
            f"the first batch of {split!r} (inputs {_kinds(inputs)}, outputs {shapes}, labels {labels.dtype} "
            f"{labels.shape})"
        )
        if None in (config.loss, config.metric):
            _check_outputs(config, outputs, batch)
            _check_shape_of_labels(outputs, labels, batch)
        for key, name, measure in of_split:
            wrong = _called(key, name, batch, measure.misfit, outputs, labels)
            if wrong is not None:
                raise ConfigError(f"{key} is {name!r}, which was tried on {batch}: {wrong}")


class _TrainedLoss(MeanOfItems):
    """The loss in the form used for training: it must be one number for a batch."""

    def misfit(self, outputs: Any, labels: Tensor) -> str | None:
        values, _ = values_of(self.score, outputs, labels)
        if not values.shape:
            return None
        return f"it gives the shape {values.shape} with reduction='mean'; it must give one number, ()"


def _check_outputs(config: StageConfig, outputs: Any, batch: str) -> None:
    """Check that there are ``model.n_classes`` outputs; the scores check everything else."""
    shape = [*getattr(outputs, "shape", ())]
    n_classes = config.model.n_classes
    if len(shape) > 1 and shape[1] != n_classes:
        raise ConfigError(
            f"model.name is {config.model.name!r}, which on {batch} gives {shape[1]} outputs, but model.n_classes is "
            f"{n_classes}; {CLASSES_REMEDY}, or --set model.n_classes={shape[1]} if these are the classes"
        )


def _check_shape_of_labels(outputs: Any, labels: Tensor, batch: str) -> None:
    """Check that there is one class for each position in the outputs; labels of probabilities have a class axis."""
    shape = tuple(getattr(outputs, "shape", ()))
    expected = shape[:1] + shape[2:]
    if labels.is_floating_point() or len(shape) < 2 or labels.shape == expected:
        return
    raise DataError(
        f"data.dataset gives labels of the shape {labels.shape[1:]}, but for the outputs on {batch} a label must have "
        f"the shape {expected[1:]}; give a sample's class as one number, such as 3 instead of [3]"
    )


def _outputs_of(network: nn.Cell, name: str, inputs: Sequence[Tensor], split: str) -> Any:
    """Return a network's outputs in evaluation mode; raise ConfigError if it doesn't take the inputs."""
    try:
        with evaluating(network):
            return network(*inputs)
    except Exception as error:
        why = f"{type(error).__name__}: {shown(str(error), 300)}"
        taken = describe_first_layer(network)
        expected = f"its {taken}; give it that" if taken else "give it what it takes"
        raise ConfigError(
            f"model.name is {name!r}, which fails on the inputs of the first batch of {split!r}, {_kinds(inputs)}: "
            f"{expected} ({why})"
        ) from error


def _called(key: str, name: str | None, batch: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function; raise ConfigError if it fails."""
    try:
        return function(*arguments)
    except DimredError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {shown(str(error), 300)}"
        raise ConfigError(f"{key} is {name!r}, which fails on {batch}: {why}") from error


def _kinds(parts: Sequence[Tensor]) -> str:
    return " and ".join(f"{part.dtype} {part.shape}" for part in parts)


def _shapes(parts: Sequence[Tensor]) -> str:
    return " and ".join(str(part.shape) for part in parts)
