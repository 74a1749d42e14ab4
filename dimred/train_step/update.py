"""The second half of a step: the gradient of the whole batch is known."""

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, Tensor, amp, nn, ops

from dimred.train_step.loss_scale import NoLossScale
from dimred.train_step.network_state import CopyOf


class Update(nn.Cell):
    """Optimizer, then EMA; gives () bool true, once both are done."""

    def __init__(self, optimizer: nn.Optimizer, ema: nn.Cell):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.ema = ema
        self.yes = Tensor(True)

    def construct(self, gradients: tuple[Tensor, ...]) -> Tensor:
        done = self.optimizer(gradients)
        return ops.depend(ops.depend(self.yes, self.ema()), done)


class Always(nn.Cell):
    """Every step is applied."""

    def __init__(self, update: nn.Cell):
        super().__init__(auto_prefix=False)
        self.update = update

    def saved(self) -> tuple[Tensor, ...]:
        """Nothing needs to be put back."""
        return ()

    def construct(self, raw: tuple[Tensor, ...], gradients: tuple[Tensor, ...], saved: tuple[Tensor, ...]) -> Tensor:
        return self.update(gradients)


class WhereFinite(nn.Cell):
    """A step whose gradient is not finite is dropped: nothing is updated, what its forward pass changed is put back.

    Args:
        update: gradients -> applied.
        loss_scale: learns whether the gradient was finite.
        side_state: what a forward pass may change besides the weights, BatchNorm statistics before all.
    """

    def __init__(self, update: nn.Cell, loss_scale: NoLossScale, side_state: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.update = update
        self.loss_scale = loss_scale
        self.side_state = ms.ParameterTuple(side_state)
        self.copy_of_side_state = CopyOf(side_state)

    def saved(self) -> tuple[Tensor, ...]:
        """Copies to be put back."""
        return self.copy_of_side_state()

    def construct(self, raw: tuple[Tensor, ...], gradients: tuple[Tensor, ...], saved: tuple[Tensor, ...]) -> Tensor:
        all_finite = amp.all_finite(raw)
        if all_finite:
            self.update(gradients)
        else:
            for parameter, value in zip(self.side_state, saved):  # noqa: B905  (a graph's zip knows no strict)
                ops.assign(parameter, value)
        self.loss_scale(all_finite)
        return all_finite
