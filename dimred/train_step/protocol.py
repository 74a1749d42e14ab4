"""The protocol between a run and the step that it calls, whichever kind of step it is."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from mindspore import Parameter, Tensor, nn

from dimred.distributed.in_step import Ballot
from dimred.train_step.ema import EMA
from dimred.train_step.optimizer_state import is_rate
from dimred.train_step.part import StepPart


class Result(Protocol):
    """What a step returns: a named tuple whose first field is the loss, where MindSpore's callbacks look for it.

    Attributes:
        loss: () float32.
    """

    @property
    def loss(self) -> Tensor:
        """Return the batch's loss before the step."""

    def record(self) -> dict[str, Any]:
        """Return plain numbers, texts and lists by name, for a JSON record; this waits for the device."""


@runtime_checkable
class Step(Protocol):
    """A step as a run sees it; ``TrainStep`` and ``SearchStep`` implement it."""

    @property
    def optimizer(self) -> nn.Cell:
        """Return the optimizer, or a cell with the attributes that callbacks look for, such as ``global_step``."""

    @property
    def parts(self) -> Sequence[StepPart]:
        """Return the optional parts."""

    @property
    def ema(self) -> EMA | None:
        """Return the moving average of the network; None without one."""

    @property
    def ballot(self) -> Ballot | None:
        """Return the ranks' ballot on each step; None if the ranks must agree in another way before it."""

    def __call__(self, *inputs: Tensor) -> Result:
        """Take a step on a batch, given as the inputs of ``network``, and return the step's report."""

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that a step needs to continue, by name: weights, statistics, and the parts' own state."""

    def restore(self, arrays: Mapping[str, np.ndarray], source: str) -> None:
        """Restore what ``state`` returned, to the last bit, or change nothing.

        Args:
            arrays: the arrays by name; names that the step does not know are ignored.
            source: where the arrays come from, for errors.

        Raises:
            CheckpointError: an array is missing or has a different shape.
            ConfigError: the arrays come from a different kind of step.
        """


def parameters_to_save(step: nn.Cell) -> list[Parameter]:
    """Return every parameter that a step's state holds: all except the learning rates, which are computed anew."""
    return [parameter for parameter in step.get_parameters() if not is_rate(parameter)]
