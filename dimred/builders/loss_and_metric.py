"""What is trained by and measured by: the built-in loss and metric of a classifier, or somebody's own."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from mindspore import Tensor, nn

from dimred.config import StageConfig
from dimred.data.batches import Batches
from dimred.errors import ConfigError, DimredError, shown
from dimred.evaluation.scores import CLASSIFICATION, Score, Scores, misfit, on_host
from dimred.models.factory import call_factory, make_cell
from dimred.train_step.network_state import evaluating

Result = TypeVar("Result")


class _WithLoss(nn.Cell):
    """The columns of a batch -> the loss of the network's outputs and the last column, the labels."""

    def __init__(self, network: nn.Cell, loss: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss = loss

    def construct(self, *batch: Tensor) -> Tensor:
        return self.loss(self.network(*batch[:-1]), batch[-1])


def build_loss(config: StageConfig, network: nn.Cell) -> nn.Cell:
    """Build the cell inputs, labels -> scalar mean loss; by default cross entropy with label smoothing."""
    return _WithLoss(network, _mean_loss(config))


def _mean_loss(config: StageConfig) -> nn.Cell:
    if config.loss is None:
        return nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
    return make_cell(config.loss, key="loss", reduction="mean")


def build_scores(config: StageConfig) -> Scores:
    """Build the loss and the metric that measure; by default cross entropy without smoothing, and accuracy.

    Raises:
        ConfigError: a factory can't be imported or called, or makes something else.
    """
    loss, metric = CLASSIFICATION
    if config.loss is not None:
        loss = make_cell(config.loss, key="loss", reduction="none")
    if config.metric is not None:
        metric = call_factory(config.metric, key="metric")
        if not callable(metric):
            raise ConfigError(
                f"metric is {config.metric!r}, which returned {type(metric).__name__}; it must return a function or a "
                "cell (outputs, labels) -> one number for each item"
            )
    return Scores(loss, metric)


def check_scores(config: StageConfig, network: nn.Cell, scores: Scores, images: Mapping[str, Batches]) -> None:
    """Try loss and metric on the first batch of what they will be used on; nothing is changed.

    Every rank does so that has samples of both splits; see ``Ranks.run_on_rank_zero`` why not rank 0 alone.

    Built-in data are checked elsewhere, and cost nothing here where loss and metric are built in, too.

    Args:
        config: names them for the errors.
        network: as it is.
        scores: of ``build_scores``.
        images: by split; ``train`` and the evaluation split.

    Raises:
        ConfigError: network, loss or metric fail, or do not give what they must.
        DataError: the built-in ones can't use the labels.
    """
    if config.data.dataset is None and config.loss is None and config.metric is None:
        return
    if min(images[split].n_images for split in ("train", config.data.eval_split)) <= images["train"].rank:
        return
    train = _FirstBatch(config, network, "train", images["train"])
    if (shape := train.shape_of("loss", config.loss, _mean_loss(config))) != ():
        raise train.refusal("loss", config.loss, f"the shape {shape} with reduction='mean'; it must be one number, ()")
    evaluated = _FirstBatch(config, network, config.data.eval_split, images[config.data.eval_split])
    for key, name, score in (("loss", config.loss, scores.loss), ("metric", config.metric, scores.metric)):
        if wrong := misfit(evaluated.shape_of(key, name, score), evaluated.outputs, evaluated.labels):
            raise evaluated.refusal(key, name, wrong)


class _FirstBatch:
    """The network's outputs for the first batch of a split, and its labels."""

    def __init__(self, config: StageConfig, network: nn.Cell, split: str, images: Batches):
        *inputs, self.labels = next(images.evaluation().create_tuple_iterator(num_epochs=1))
        self._where = f"the first batch of {split!r} (inputs {' and '.join(str(part.shape) for part in inputs)}"
        with evaluating(network):
            self.outputs = self._called("model.name", config.model.name, lambda: network(*inputs))
        outputs = self.outputs if isinstance(self.outputs, tuple | list) else [self.outputs]
        self._where += f", outputs {' and '.join(str(part.shape) for part in outputs)}"
        self._where += f", labels {self.labels.dtype} {self.labels.shape}"

    def shape_of(self, key: str, name: str | None, score: Score) -> tuple[int, ...]:
        """Return the shape of the values that a loss or a metric gives; ConfigError where it fails."""

        def shape() -> tuple[int, ...]:
            found = score(self.outputs, self.labels)
            values, counted = found if isinstance(found, tuple) else (found, True)
            return np.broadcast_shapes(on_host(values).shape, np.shape(on_host(counted)))

        return self._called(key, name, shape)

    def refusal(self, key: str, name: str | None, gives: str) -> ConfigError:
        """Make an error that says what a loss or a metric gives, and what it must give."""
        return ConfigError(f"{key} is {name!r}, which on {self._where}) gives {gives}")

    def _called(self, key: str, name: str | None, function: Callable[[], Result]) -> Result:
        try:
            return function()
        except DimredError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {shown(str(error), 300)}"
            raise ConfigError(f"{key} is {name!r}, which fails on {self._where}): {why}") from error
