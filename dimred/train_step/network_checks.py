"""Check that a step can train a network."""

from mindspore import Parameter, nn

from dimred.errors import ConfigError


def check_dense(network: nn.Cell) -> None:
    """Check that every gradient of the network is a tensor, which a step that adds or scales gradients needs.

    Raises:
        ConfigError: an embedding's gradient has only the rows that were looked up.
    """
    for name, cell in network.cells_and_names():
        if isinstance(cell, nn.EmbeddingLookup) and cell.sparse and cell.embedding_table.requires_grad:
            raise ConfigError(
                f"the cell {name!r} of the network, {type(cell).__name__}, has sparse gradients, which only a step "
                "without micro-batches, ranks, clipping, a loss scale and a search can take; use nn.Embedding, or "
                "target='DEVICE' with sparse=False"
            )


def check_names(step: nn.Cell) -> None:
    """Check that no two parameters of a step have one name.

    MindSpore would rename all of them when it compiles the step, so that no checkpoint would fit the network.

    Raises:
        ConfigError: two have.
    """
    known: dict[str, Parameter] = {}
    for parameter in step.get_parameters():
        if known.setdefault(parameter.name, parameter) is not parameter:
            raise ConfigError(
                f"two parameters are named {parameter.name!r}: one of the network, and another one of the network, the "
                "optimizer or a part of the step; rename the network's"
            )
