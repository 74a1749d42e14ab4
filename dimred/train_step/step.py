"""TrainStep: the order of one ordinary training step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import Parameter, Tensor, amp, nn, ops

from dimred.distributed.ranks import KeepLocal
from dimred.train_step.clipping import NoClipping
from dimred.train_step.ema import NoEMA
from dimred.train_step.gradient import BatchGradient, GroupGradient
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


class StepResult(NamedTuple):
    """What a training step returns; ``loss`` stands first, where MindSpore's callbacks look for it.

    Attributes:
        loss: () float32, f(w; B) before the update, unscaled.
        applied: () bool, false where the step was dropped because its gradient was not finite.
        grad_norm: () float32, |g| before clipping; nan without clipping.
        loss_scale: () float32, S of this step; 1 without a loss scale.
        n_overflows: () int32, steps dropped so far, this one included.
    """

    loss: Any
    applied: Any
    grad_norm: Any
    loss_scale: Any
    n_overflows: Any


class TrainStep(nn.Cell):
    """One training step: the order of its parts, each of which may be left out and then is not in the graph.

    scaled loss -> unscale to float32 -> accumulate -> reduce -> all finite? -> clip -> update -> EMA

    Usable as a function, or handed to ``mindspore.train.Model``; in graph mode and PyNative. Without micro-batches the
    step is one graph, fit for sink mode; with them it is a loop on the host over small graphs, and sink mode does not
    apply (in sink mode the batch is taken whole).

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        optimizer: over the network's trainable parameters.
        loss_scale: ``StaticLossScale`` or ``DynamicLossScale``. A step whose gradient is not finite is dropped:
            weights, optimizer state, EMA, BatchNorm statistics and every other parameter stay byte for byte as they
            were.
        micro_batch_size: rows of a micro-batch. The step is called with the whole batch, cuts it into pieces of so many
            rows, and updates once with the mean gradient; None takes the batch whole.
        reduce: the gradients of this rank -> their means over all ranks, see ``dimred.distributed.ranks``.
        clipping: ``Clipping``, or a cell with its inputs and outputs.
        ema: ``EMA`` of the network.

    Inputs:
        the inputs of ``network``.

    Outputs:
        StepResult; its first field is the loss.

    Raises:
        ConfigError: an option outside its range.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Optimizer,
        *,
        loss_scale: NoLossScale | None = None,
        micro_batch_size: int | None = None,
        reduce: nn.Cell | None = None,
        clipping: nn.Cell | None = None,
        ema: nn.Cell | None = None,
    ):
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.ema = ema
        loss_scale = NoLossScale() if loss_scale is None else loss_scale
        update = Update(optimizer, NoEMA(auto_prefix=False) if ema is None else ema)
        side_state = [parameter for parameter in network.get_parameters() if not parameter.requires_grad]
        guard = WhereFinite(update, loss_scale, side_state) if loss_scale.drops_overflow else Always(update)
        self.gradient = BatchGradient(network, optimizer.parameters, loss_scale)
        self.finish = _Finish(
            KeepLocal() if reduce is None else reduce,
            NoClipping() if clipping is None else clipping,
            guard,
            loss_scale,
        )
        self._group = None
        if micro_batch_size is not None:
            self._group = GroupGradient(self.gradient, micro_batch_size)
            self._saved = _Saved(guard)
            self._finish_vector = _FinishVector(self.finish, optimizer)

    def __call__(self, *inputs: Tensor) -> StepResult:
        # Named here and not in the graph, which would call the interpreter for it.
        if self._group is None:
            return StepResult(*super().__call__(*inputs))
        saved = self._saved()
        loss, vector = self._group.loss_and_gradient(inputs)
        return StepResult(*self._finish_vector(loss, vector, *saved))

    def construct(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The whole step as one graph; the values of a ``StepResult``."""
        saved = self.finish.guard.saved()
        loss, gradients = self.gradient(*inputs)
        return self.finish(loss, gradients, saved)


class _Finish(nn.Cell):
    """The rest of the step, once the gradient of the whole batch is known."""

    def __init__(self, reduce: nn.Cell, clipping: nn.Cell, guard: nn.Cell, loss_scale: NoLossScale):
        super().__init__(auto_prefix=False)
        self.reduce = reduce
        self.clipping = clipping
        self.guard = guard
        self.loss_scale = loss_scale

    def construct(self, loss: Tensor, gradients: tuple[Tensor, ...], saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        scale = self.loss_scale.current()
        gradients = self.reduce(*gradients)
        clipped, norm = self.clipping(gradients)
        applied = self.guard(gradients, clipped, saved)
        return loss, applied, norm, scale, self.loss_scale.overflows()


class _Saved(nn.Cell):
    """What the guard keeps before a step, as a graph of its own."""

    def __init__(self, guard: nn.Cell):
        super().__init__(auto_prefix=False)
        self.guard = guard

    def construct(self) -> tuple[Tensor, ...]:
        return self.guard.saved()


class _FinishVector(nn.Cell):
    """``_Finish`` from the gradient as one vector (M,)."""

    def __init__(self, finish: _Finish, optimizer: nn.Optimizer):
        super().__init__(auto_prefix=False)
        self.finish = finish
        self.places = []
        first = 0
        for parameter in optimizer.parameters:
            self.places.append((first, first + parameter.size, parameter.shape))
            first += parameter.size

    def construct(self, loss: Tensor, vector: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        gradients = tuple([vector[first:end].reshape(shape) for first, end, shape in self.places])
        return self.finish(loss, gradients, saved)
