"""Turn a network's output into a batch's mean loss."""

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from dimred.errors import ConfigError
from dimred.workarounds.visited_cells import VisitedOnce


class MeanLoss(VisitedOnce, nn.Cell):
    """A cell that returns a batch's mean loss: the network's result, or its sum divided by its count.

    Args:
        network: network and loss in one cell; returns a batch's mean loss, or (sum, count).

    Inputs:
        the network's inputs.

    Outputs:
        the mean loss, the same number as its total, and the weight 1, () float32 each; see ``WeightedLoss``.

    Raises:
        ConfigError: at the first call, the network returns neither one number nor a pair with an integer count.
    """

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.one = Tensor(1.0, ms.float32)

    def construct(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        numbers = loss_numbers(self.network(*inputs))
        mean = numbers[0] if len(numbers) == 1 else numbers[0] / numbers[1]
        return mean, mean, self.one


def loss_numbers(loss: Any) -> list[Tensor]:
    """Return the mean loss, or the sum and the count, float32 each; refuse anything else; see ``MeanLoss``.

    Any other pair, such as a loss and an accuracy, must not be divided.
    """
    values = loss if isinstance(loss, (tuple, list)) else [loss]
    _check_kinds([(value.shape, value.dtype) if isinstance(value, Tensor) else None for value in values])
    return [value.astype(ms.float32) for value in values]


@ops.constexpr  # so that it runs when the graph is compiled, before any step
def _check_kinds(kinds: list[Any]) -> None:
    are_numbers = all(kind is not None and kind[0] == () for kind in kinds)
    has_count = len(kinds) == 2 and are_numbers and kinds[1][1] in (mstype.int32, mstype.int64)
    if not (are_numbers and len(kinds) == 1) and not has_count:
        values = " and ".join("no tensor" if kind is None else f"{kind[1]} {kind[0]}" for kind in kinds)
        raise ConfigError(
            f"the network gives {values} as its loss; a step needs the mean over the batch, one tensor of the shape () "
            '(reduction="mean"), or the sum and the count, two tensors of that shape, the count int32 or int64'
        )
