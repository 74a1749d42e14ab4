"""Updates that a step may leave out: if its gradient is not finite, or if a rank voted to leave."""

from typing import Any

from mindspore import Tensor, amp, nn

from dimred.train_step.part import LossScale


class UnlessOverflow(nn.Cell):
    """A cell that updates, and returns True, unless a gradient is not finite; it tells the loss scale."""

    def __init__(self, update: nn.Cell, loss_scale: LossScale, untrained_parameters: Any):
        super().__init__(auto_prefix=False)
        self.update = update
        self.loss_scale = loss_scale
        self.untrained_parameters = untrained_parameters

    def construct(self, gradients: Any, changed: Any, untrained_values: Any, votes: Any) -> Tensor:
        applied = amp.all_finite(gradients)
        if applied:
            self.update(gradients, changed, untrained_values, votes)
        else:
            self.untrained_parameters.restore(untrained_values)
        self.loss_scale.observe(applied)
        return applied


class UnlessLeft(nn.Cell):
    """A cell that updates unless a rank voted to leave, and returns whether it updated."""

    def __init__(self, update: nn.Cell, untrained_parameters: Any):
        super().__init__(auto_prefix=False)
        self.update = update
        self.untrained_parameters = untrained_parameters
        self.no = Tensor(False)

    def construct(self, gradients: Any, changed: Any, untrained_values: Any, votes: Any) -> Tensor:
        if votes[0] > 0:
            self.untrained_parameters.restore(untrained_values)
            applied = self.no
        else:
            applied = self.update(gradients, changed, untrained_values, votes)
        return applied
