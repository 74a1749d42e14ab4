"""In PyNative, ``nn.BCEWithLogitsLoss`` computes its gradient for the wrong batch size.

With ``reduction="mean"`` the kernel divides the gradient by the number of elements in the process's first call. For a
batch of another size the gradient is wrong by a factor; the loss is right. Seen in MindSpore 2.10 on CPU; graph mode is
right. We know of no report. ``tests/workarounds`` fails once the fault is gone.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import mindspore as ms
from mindspore import Tensor, nn, ops


class ExactBinaryCrossEntropy:
    """A guard for PyNative that makes each ``nn.BCEWithLogitsLoss`` in a network take its mean outside the kernel.

    Args:
        network: network and loss in one cell. Without such a loss the guard does nothing.
    """

    def __init__(self, network: nn.Cell):
        self._is_needed = any(isinstance(cell, nn.BCEWithLogitsLoss) for _, cell in network.cells_and_names())

    def in_use(self) -> AbstractContextManager[None]:
        """Return a context that replaces how the loss is computed; in graph mode it changes nothing."""
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
