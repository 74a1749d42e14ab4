"""TrainStep: the order of one ordinary training step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mindspore import Parameter, Tensor, amp, nn, ops

from dimred.distributed.ranks import KeepLocal
from dimred.errors import ConfigError, shown
from dimred.train_step.clipping import NoClipping
from dimred.train_step.ema import NoEMA
from dimred.train_step.gradient import BatchGradient, GroupGradient
from dimred.train_step.loss_scale import NoLossScale
from dimred.vectors.base import make_vectors
from dimred.vectors.graph import GraphCopies, Unflatten


class StepResult(NamedTuple):
    """What a training step returns; ``loss`` comes first, where MindSpore's callbacks look for it.

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

    def __repr__(self) -> str:
        """In one line."""
        return f"StepResult(loss {float(self.loss):.4g}, {'applied' if bool(self.applied) else 'dropped'})"


class TrainStep(nn.Cell):
    """One training step: the order of its parts. A part that is off is an identity, and is not in the compiled graph.

    scaled loss -> unscale to float32 -> accumulate -> reduce -> all finite? -> clip -> update -> EMA

    Call it, or hand it to ``mindspore.train.Model``, in graph mode or PyNative. Without micro-batches the step is one
    graph, fit for sink mode. With micro-batches it is a loop on the host over small graphs; sink mode would take the
    batch whole.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        optimizer: over the network's trainable parameters.
        loss_scale: ``StaticLossScale`` or ``DynamicLossScale``. A step whose gradient is not finite is dropped:
            weights, optimizer state, EMA, BatchNorm statistics and every other parameter stay byte for byte as they
            were.
        micro_batch_size: rows of a micro-batch. The step is called with the whole batch, cuts it, and updates once with
            the mean gradient; None takes the batch whole.
        reduce: this rank's gradients -> their means over all ranks, see ``Ranks.mean``.
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
        if not isinstance(optimizer, nn.Optimizer):
            raise ConfigError(
                f"optimizer is {shown(optimizer)}; give one of mindspore.nn, over the trainable parameters"
            )
        self.network = network
        self.optimizer = optimizer
        self.ema = ema
        loss_scale = NoLossScale() if loss_scale is None else loss_scale
        update: nn.Cell = _Update(optimizer, NoEMA() if ema is None else ema)
        if loss_scale.drops_overflow:
            untrained = [parameter for parameter in network.get_parameters() if not parameter.requires_grad]
            update = _UpdateIfFinite(update, loss_scale, untrained)
        self.gradient = BatchGradient(network, optimizer.parameters, loss_scale)
        self.finish = _Finish(
            KeepLocal() if reduce is None else reduce,
            NoClipping() if clipping is None else clipping,
            update,
            loss_scale,
        )
        self._group = None
        if micro_batch_size is not None:
            self._group = GroupGradient(self.gradient, micro_batch_size, make_vectors(optimizer.parameters))
            self._finish_vector = _FinishVector(self.finish, optimizer)

    def __call__(self, *inputs: Tensor) -> StepResult:
        # Named here and not in the graph, which would call the interpreter for it.
        if self._group is None:
            return StepResult(*super().__call__(*inputs))
        saved = self.finish.update.saved()
        loss, vector = self._group.loss_and_gradient(inputs)
        return StepResult(*self._finish_vector(loss, vector, *saved))

    def construct(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The whole step as one graph; the values of a ``StepResult``."""
        saved = self.finish.update.saved()
        loss, gradients = self.gradient(*inputs)
        return self.finish(loss, gradients, saved)


class _Finish(nn.Cell):
    """The rest of the step, once the gradient of the whole batch is known."""

    def __init__(self, reduce: nn.Cell, clipping: nn.Cell, update: nn.Cell, loss_scale: NoLossScale):
        super().__init__(auto_prefix=False)
        self.reduce = reduce
        self.clipping = clipping
        self.update = update
        self.loss_scale = loss_scale

    def construct(self, loss: Tensor, gradients: tuple[Tensor, ...], saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        scale = self.loss_scale.current()
        gradients = self.reduce(*gradients)
        clipped, norm = self.clipping(gradients)
        applied = self.update(gradients, clipped, saved)
        return loss, applied, norm, scale, self.loss_scale.overflows()


class _FinishVector(nn.Cell):
    """``_Finish`` from the gradient as one vector (M,)."""

    def __init__(self, finish: _Finish, optimizer: nn.Optimizer):
        super().__init__(auto_prefix=False)
        self.finish = finish
        self.unflatten = Unflatten(optimizer.parameters)

    def construct(self, loss: Tensor, vector: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        return self.finish(loss, self.unflatten(vector), saved)


class _Update(nn.Cell):
    """Optimizer, then EMA, whatever the gradient; returns () bool true once both are done."""

    def __init__(self, optimizer: nn.Optimizer, ema: nn.Cell):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.ema = ema
        self.yes = Tensor(True)

    def saved(self) -> tuple[Tensor, ...]:
        """Nothing is ever put back."""
        return ()

    def construct(self, raw: tuple[Tensor, ...], clipped: tuple[Tensor, ...], saved: tuple[Tensor, ...]) -> Tensor:
        done = self.optimizer(clipped)
        return ops.depend(ops.depend(self.yes, self.ema()), done)


class _UpdateIfFinite(nn.Cell):
    """A step whose gradient is not finite is dropped: nothing is updated, what its forward pass changed is put back.

    Args:
        update: of a step that is not dropped.
        loss_scale: learns whether the gradient was finite.
        untrained: what a forward pass may change besides the weights, such as BatchNorm statistics.
    """

    def __init__(self, update: nn.Cell, loss_scale: NoLossScale, untrained: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.update = update
        self.loss_scale = loss_scale
        self.untrained = GraphCopies(untrained)

    def saved(self) -> tuple[Tensor, ...]:
        """Copies to be put back."""
        return self.untrained()

    def construct(self, raw: tuple[Tensor, ...], clipped: tuple[Tensor, ...], saved: tuple[Tensor, ...]) -> Tensor:
        all_finite = amp.all_finite(raw)
        if all_finite:
            self.update(raw, clipped, saved)
        else:
            self.untrained.restore(saved)
        self.loss_scale.observe(all_finite)
        return all_finite
