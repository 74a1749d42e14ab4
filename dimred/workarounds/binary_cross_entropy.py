"""The gradient of ``nn.BCEWithLogitsLoss`` in PyNative is that of a batch of another size.

With ``reduction="mean"`` the kernel divides the gradient by the number of elements that the first call of the process
had. For any other batch the gradient is wrong by a factor; the loss is right. Seen in MindSpore 2.10 on CPU; graph mode
is right. We know of no report. ``tests/workarounds`` fails once the fault is gone.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import mindspore as ms
from mindspore import Tensor, nn, ops


class ExactBinaryCrossEntropy:
    """A guard that lets each ``nn.BCEWithLogitsLoss`` of a network take its mean outside the kernel, in PyNative mode.

    Args:
        network: network and loss in one cell. Without such a loss the guard does nothing.
    """

    def __init__(self, network: nn.Cell):
        self._is_needed = any(isinstance(cell, nn.BCEWithLogitsLoss) for _, cell in network.cells_and_names())

    def in_use(self) -> AbstractContextManager[None]:
        """Return a context that replaces the computation of the loss; in graph mode it changes nothing."""
        is_wrong = self._is_needed and ms.get_context("mode") == ms.PYNATIVE_MODE
        return _replaced() if is_wrong else nullcontext()


@contextmanager
def _replaced() -> Iterator[None]:
    of_mindspore = nn.BCEWithLogitsLoss.construct
    nn.BCEWithLogitsLoss.construct = _construct
    try:
        yield
    finally:
        nn.BCEWithLogitsLoss.construct = of_mindspore


def _construct(loss: nn.Cell, logits: Tensor, labels: Tensor) -> Tensor:
    reduction = "none" if loss.reduction == "mean" else loss.reduction
    weight = ops.ones_like(logits) if loss.weight is None else loss.weight
    pos_weight = ops.ones_like(logits) if loss.pos_weight is None else loss.pos_weight
    values = ops.binary_cross_entropy_with_logits(logits, labels, weight, pos_weight, reduction)
    return values.astype(ms.float32).mean() if loss.reduction == "mean" else values
