"""Check that a step can train a network."""

from collections.abc import Iterable, Sequence

import mindspore as ms
from mindspore import Parameter, nn

from dimred.errors import ConfigError, shown
from dimred.train_step.optimizer_state import RATES_SQUARED, UPDATES

# Parameters of MindSpore's and mindcv's optimizers that belong to no single weight; a test checks the list.
_OF_OPTIMIZERS = (
    UPDATES,
    "learning_rate",
    "momentum",
    "beta1_power",
    "beta2_power",
    "mu_schedule",
    "afactor_step",
    RATES_SQUARED,
)


def check_dense(network: nn.Cell) -> None:
    """Check that all the network's gradients are tensors, so that a step can add and scale them.

    Raises:
        ConfigError: an embedding's gradient holds only the rows that were looked up.
    """
    for name, cell in network.cells_and_names():
        if isinstance(cell, nn.EmbeddingLookup) and cell.sparse and cell.embedding_table.requires_grad:
            raise ConfigError(
                f"the network's cell {name!r}, of type {type(cell).__name__}, has sparse gradients. A search can't use "
                "them, nor can a step with micro-batches, ranks, clipping or a loss scale; use nn.Embedding, or "
                "target='DEVICE' with sparse=False"
            )


def check_names(step: nn.Cell) -> None:
    """Check that no two parameters in a step share a name.

    MindSpore would rename all of them when it compiles the step, and no checkpoint would fit the network.

    Raises:
        ConfigError: two parameters share a name.
    """
    known: dict[str, Parameter] = {}
    for parameter in step.get_parameters():
        if known.setdefault(parameter.name, parameter) is not parameter:
            raise ConfigError(
                f"two parameters are named {parameter.name!r}: one belongs to the network, the other to the network, "
                "the optimizer or a part of the step; rename the network's"
            )


def check_weight_names(weights: Sequence[Parameter]) -> None:
    """Check that no weight has the name of a parameter that an optimizer looks up by name, such as its rate."""
    for weight in weights:
        if weight.name in _OF_OPTIMIZERS:
            raise ConfigError(
                f"a weight of the network is named {weight.name!r}. MindSpore's optimizers have a parameter of that "
                "name, and would use the weight in its place; rename the weight"
            )


def check_optimizer(optimizer: nn.Optimizer, trainable: Sequence[Parameter]) -> None:
    """Check that an optimizer can train a network.

    Args:
        optimizer: the optimizer, as the caller gave it.
        trainable: the network's trainable parameters.

    Raises:
        ConfigError: ``optimizer`` is not an optimizer, has a loss scale, or has a parameter that is not trainable in
            the network, is not float32, or is named like one of the optimizer's own.
    """
    if not isinstance(optimizer, nn.Optimizer):
        raise ConfigError(
            f"optimizer is {shown(optimizer)}; give one from mindspore.nn, made from network.trainable_params()",
            argument="optimizer",
        )
    if optimizer.loss_scale != 1:
        raise ConfigError(
            f"optimizer has a loss_scale of {optimizer.loss_scale:g}, and would divide by it what the step has already "
            "unscaled; make it without one, and give the loss scale to the step",
            argument="optimizer",
        )
    check_weight_names(optimizer.parameters)
    trainable_ids = {id(weight) for weight in trainable}
    for weight in optimizer.parameters:
        if id(weight) not in trainable_ids:
            raise ConfigError(
                f"optimizer has {weight.name!r}, which is not a trainable parameter of the network that the step "
                "trains; make it from network.trainable_params()",
                argument="optimizer",
            )
    check_float32(optimizer.parameters)


def check_float32(weights: Iterable[Parameter]) -> None:
    """Check that all weights are float32; ConfigError if one is not."""
    for weight in weights:
        if weight.dtype != ms.float32:
            raise ConfigError(
                f"the weight {weight.name!r} is {weight.dtype}; weights must be float32. To compute in half precision, "
                "leave them in float32, and use mindspore.amp or cell.to_float(mindspore.float16)"
            )
