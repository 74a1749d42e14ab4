"""Make one ordinary training step, from the gradient to the moving average."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn

from dimred.distributed.in_step import Ballot
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import check_type
from dimred.train_step.ema import EMA
from dimred.train_step.finish import Finish, whole_batch
from dimred.train_step.gradient import BatchGradient, VectorGradient
from dimred.train_step.inputs import as_tensors
from dimred.train_step.micro_batches import FinishVector, GroupGradient
from dimred.train_step.modes import TrainingMode
from dimred.train_step.network_checks import check_dense, check_names, check_optimizer
from dimred.train_step.part import GradientPart, LossScale, StepPart, TypedCell, average_of, parts_of
from dimred.train_step.protocol import parameters_to_save
from dimred.train_step.usual_parts import collect_parts
from dimred.train_step.weighted_loss import MeanOfBatches
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.vectors.weights import GraphCopies, make_vectors
from dimred.workarounds.binary_cross_entropy import ExactBinaryCrossEntropy
from dimred.workarounds.failed_gradient import clearing_failures
from dimred.workarounds.moved_memory import KnownMemory
from dimred.workarounds.visited_cells import VisitedOnce


class StepResult(NamedTuple):
    """The outcome of a training step; ``loss`` comes first, where MindSpore's callbacks look for it.

    Attributes:
        loss: () float32, f(w; B) before the update, unscaled; the mean over all ranks.
        applied: () bool, false if the step was dropped, because its gradient was not finite or a rank voted to leave.
        telemetry: the numbers that the step's parts report, by name, () each: ``grad_norm``, |g| before clipping;
            ``loss_scale``, this step's S; ``n_overflows``, the steps that the loss scale has dropped so far, this one
            included.
    """

    loss: Any
    applied: Any
    telemetry: dict[str, Any]

    def __repr__(self) -> str:
        """Describe the step in one line."""
        return f"StepResult(loss {float(self.loss):.4g}, {'applied' if bool(self.applied) else 'dropped'})"

    def record(self) -> dict[str, Any]:
        """Return ``loss``, ``applied`` and the telemetry as plain numbers; this waits for the device."""
        values = {"loss": self.loss, "applied": self.applied} | self.telemetry
        return {name: value.asnumpy().item() for name, value in values.items()}


class TrainStep(VisitedOnce, TypedCell):
    """A cell that makes one training step on a network.

    scaled loss -> unscale to float32 -> accumulate -> reduce -> all finite? -> clip -> update -> EMA

    Call it, or hand it to ``mindspore.train.Model``, in graph mode or PyNative. When called, it puts its cells into
    training mode (see ``TrainingMode``). Without micro-batches the step is one graph, fit for sink mode; a part that is
    off does not appear in it. With micro-batches the host loops over small graphs; sink mode would take the batch
    whole.

    The network keeps its cells, with one exception: with micro-batches or ranks, each MindSpore cross entropy is
    replaced with one that counts its labels. A micro-batch's or a rank's loss is weighted by the number of items in its
    mean, so the step is the same as on the whole batch; see ``WeightedLoss``. All ranks have the same number of rows.

    Args:
        network: network and loss in one cell; returns a batch's scalar mean loss, or a pair (sum, count).
        optimizer: an optimizer without a loss scale, for trainable network parameters that are all float32; other
            parameters stay as they are.
        loss_scale, clipping, ema: the usual parts, or None: ``StaticLossScale`` or ``DynamicLossScale``, ``Clipping``,
            ``EMA``; a number in their place, or a ``mindspore.amp`` scaler or manager; see ``collect_parts``. With a
            loss scale, a step whose gradient is not finite is dropped, unless ``drop_overflow`` is false: weights,
            optimizer state, EMA, BatchNorm statistics and all other network parameters stay as they were, byte for
            byte. Without one, such a step is applied and NaN reaches the weights, because the check could cost as much
            as the rest of the step; ``loss_scale=1`` adds the check and scales nothing.
        parts: your own parts, ``GradientPart`` or ``WeightsPart``. Gradient parts run after clipping, in this order.
        micro_batch_size: rows per micro-batch. The step gets the whole batch, cuts it, and updates once with the mean
            gradient; None takes the batch whole.
        ranks: the job's ranks; their gradients are averaged.
        ballot: the result of ``ranks.ballot()``. If any rank votes to leave, the step is dropped like an overflow, but
            the loss scale and its counts stay as they are; see ``Ballot``.

    Inputs:
        the inputs of ``network``, as tensors or NumPy arrays; see ``as_tensors``.

    Outputs:
        StepResult; its first field is the loss.

    Raises:
        ConfigError: ``optimizer`` is not an optimizer, has a loss scale, or has a parameter that is not trainable in
            the network or not float32; two parameters share a name; ``micro_batch_size`` is below 1; a part can't be
            used (see ``collect_parts``); or a part, micro-batches or ranks can't use an embedding's sparse gradients.
            The first step also raises it, before it changes anything, if the loss is neither one number nor a pair with
            an integer count.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Optimizer,
        *,
        loss_scale: Any = None,
        clipping: Any = None,
        ema: Any = None,
        parts: Sequence[StepPart] = (),
        micro_batch_size: int | None = None,
        ranks: Ranks = ALONE,
        ballot: Ballot | None = None,
    ):
        super().__init__(auto_prefix=False)
        check_type("ranks", ranks, Ranks, "the ranks of a job; leave it out for one process")
        parts = collect_parts(network, loss_scale=loss_scale, clipping=clipping, ema=ema, parts=parts)
        check_optimizer(optimizer, network.trainable_params())
        loss_scales = parts_of(LossScale, parts)
        reduce = ranks.mean(len(optimizer.parameters))
        weighs = reduce is not None or micro_batch_size is not None
        if weighs or len(loss_scales) > 0 or len(parts_of(GradientPart, parts)) > 0:
            check_dense(network)
        loss_scale = loss_scales[0] if loss_scales else LossScale()
        self.parts = parts
        self.ballot = ballot
        self.votes = ballot is not None
        self.untrained_parameters = None
        if self.votes or loss_scale.drops_overflow:
            updated = {id(parameter) for parameter in optimizer.parameters}
            untrained = [parameter for parameter in network.get_parameters() if id(parameter) not in updated]
            self.untrained_parameters = GraphCopies(untrained)
        combine: Any = whole_batch
        if weighs:
            combine = MeanOfBatches(reduce)
        self.network = network
        self.optimizer = optimizer
        self.gradient = BatchGradient(network, optimizer.parameters, loss_scale, weighs)
        self.finish = Finish(optimizer, parts, loss_scale, combine, self.untrained_parameters, self.votes)
        self._group: VectorGradient | None = None
        if micro_batch_size is not None:
            self._group = GroupGradient(self.gradient, make_vectors(optimizer.parameters), micro_batch_size)
            self._finish_vector = FinishVector(self.finish, optimizer.parameters)
        self._mode = TrainingMode(self, network)
        check_names(self)
        self._binary_cross_entropy = ExactBinaryCrossEntropy(network)
        self._parameter_memory = KnownMemory(self.get_parameters())

    @property
    def ema(self) -> EMA | None:
        """Return the moving average of the network; None without one."""
        return average_of(self.parts)

    def state(self) -> dict[str, np.ndarray]:
        """Return every parameter except the learning rates, by name."""
        return to_arrays(parameters_to_save(self))

    def restore(self, arrays: Mapping[str, np.ndarray], source: str) -> None:
        """Restore the parameters from the arrays that ``state`` returned; see ``Step``."""
        from_arrays(parameters_to_save(self), arrays, source)

    @clearing_failures
    def __call__(self, *inputs: Tensor | np.ndarray) -> StepResult:
        self._mode.ensure()
        self._parameter_memory.ensure()
        with self._binary_cross_entropy.in_use():
            return self._step(as_tensors(inputs))

    def _step(self, inputs: tuple[Any, ...]) -> StepResult:
        tally = () if self.ballot is None else (self.ballot.tally,)
        if self._group is None:
            values = super().__call__(*tally, *inputs)
        else:
            untrained_values = () if self.untrained_parameters is None else self.untrained_parameters()
            loss, vector, weight = self._group.loss_and_gradient(inputs)
            values = self._finish_vector(loss, vector, weight, *tally, *untrained_values)
        if self.ballot is not None:
            *values, self.ballot.tally = values
        loss, applied, *numbers = values  # named here: to name them, the graph would have to call the interpreter
        return StepResult(loss, applied, dict(zip(self.finish.telemetry, numbers, strict=True)))

    def construct(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Make the whole step in one graph; return the loss, whether it was applied, and the telemetry's numbers.

        With a ballot, its tally precedes the network's inputs, and the next tally follows these outputs.
        """
        tally = None
        if self.votes:
            tally = inputs[0]
            inputs = inputs[1:]
        untrained_values = () if self.untrained_parameters is None else self.untrained_parameters()
        loss, gradients, weight = self.gradient(*inputs)
        return self.finish(loss, gradients, weight, untrained_values, tally)
