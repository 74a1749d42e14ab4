"""Make one search step in the subspace.

The host drives the step: it calls one graph for the gradient, passes over the basis, and calls one graph for each
trial's loss.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, NothingAcceptedError, SearchError, check_type
from dimred.search_step.direction import Direction
from dimred.search_step.dropout import draw_masks, make_replayable
from dimred.search_step.line_search import LineSearch
from dimred.search_step.moves import Line, MoveOutside, UnitRate
from dimred.search_step.objective import LineObjective, Objective
from dimred.search_step.result import (
    Clock,
    Outcome,
    SearchMemory,
    SearchResult,
    memory_arrays,
    memory_from_arrays,
)
from dimred.train_step.ema import EMA
from dimred.train_step.inputs import as_tensors
from dimred.train_step.modes import TrainingMode
from dimred.train_step.network_checks import check_dense, check_float32, check_names
from dimred.train_step.part import LossScale, StepPart, TypedCell, WeightsPart, average_of, parts_of
from dimred.train_step.protocol import parameters_to_save
from dimred.train_step.usual_parts import collect_parts
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.vectors.projection import make_projection
from dimred.vectors.weights import make_copies, make_vectors
from dimred.workarounds.binary_cross_entropy import ExactBinaryCrossEntropy
from dimred.workarounds.failed_gradient import clearing_failures
from dimred.workarounds.moved_memory import KnownMemory

_ROUNDING = 16 * float(np.finfo(np.float32).eps)  # a device may add a loss's terms in another order
_SEARCH = "search:"  # prefix of the memory's arrays in a state


class SearchStep(TypedCell):
    """A cell that makes one search step on one batch: along a direction in the subspace, then outside it.

    With loss f, gradient g, basis P (k, M), weights w (M,), all float32, and H, g_prev, s_prev in float64 on the host::

        g_k = P g                                          subspace gradient
        H <- BFGS(H, s_prev, g_k - g_prev)                 if the pair passes the curvature guard
        d_k = -H g_k;  d = P' d_k;  slope = g_k' d_k
        t = rho^j, the first j with f(w + t d) < f(w) + sigma t slope
        m <- gamma m + (g - P' g_k)
        w <- w + t d - alpha m

    This is the step with ``InverseBFGS``, ``ArmijoBacktracking`` and ``ResidualMomentum``. (Li et al., Low Dimensional
    Trajectory Hypothesis is True: DNNs can be Trained in Tiny Subspaces, 2022, algorithm 2; mindspore.boost's
    dim_reduce for the residual momentum.)

    If no trial is accepted, t = 0, and H, g_prev and s_prev stay as they were. Trials change no untrained parameter,
    such as a BatchNorm statistic. An accepted step updates the statistics like one ordinary training step; a rejected
    step leaves them as they were. If the loss or its gradient is not finite, the step changes no weight and no
    statistics. A backtracking step never raises its batch's loss, but the step outside the subspace after it can.

    The step works in graph mode and PyNative, called directly or by ``mindspore.train.Model``, but not in sink mode. It
    replaces every dropout in the network, in place, with one whose mask can be drawn again; see ``make_replayable``.

    Args:
        network: network and loss in one cell; returns a batch's scalar mean loss, or (sum, count); see ``TrainStep``.
        components: P, orthonormal rows (k, M) float32 over the network's trainable weights in their order.
        direction: chooses the direction in the subspace, such as ``InverseBFGS`` or ``ProjectedSGD``.
        line_search: chooses how far to go along it, such as ``ArmijoBacktracking`` or ``FixedStep``.
        outside: makes the step outside the subspace, such as ``ResidualMomentum``; None for no such step.
        loss_scale, clipping, ema, parts: as for ``TrainStep``. Gradient parts change g before it is used, and ``EMA``
            follows each accepted step. A step whose gradient is not finite is skipped, whatever the loss scale.
        max_rejected_steps: the search gives up after this many rejected steps in a row.
        micro_batch_size: rows per micro-batch; the gradient and every loss in the search are means over the batch.
        ranks: the ranks of a data-parallel job. Each calls the step with its own part of the batch, and holds a part of
            the basis. Every decision depends only on means or sums over all ranks, so all ranks decide alike.

    Attributes:
        memory: ``SearchMemory``, the search's state between steps.
        objective: ``Objective``, a batch's loss and gradient at the current weights.
        subspace: the two passes over the basis, ``project`` and ``back_project``; see ``make_projection``.

    Inputs:
        the inputs of ``network``, as tensors or NumPy arrays; see ``as_tensors``.

    Outputs:
        SearchResult; its first field is the loss, Tensor () float32.

    Raises:
        ConfigError: as for ``TrainStep``.
        NothingAcceptedError: the last ``max_rejected_steps`` steps were rejected; the next one raises this before it
            changes anything.
        SearchError: the network draws random numbers that can't be repeated; raised by the first accepted step at the
            latest, which is then not made.
    """

    ballot: ClassVar[None] = None  # a step reads the device midway, so the ranks must agree before it starts

    def __init__(
        self,
        network: nn.Cell,
        components: np.ndarray,
        direction: Direction,
        line_search: LineSearch,
        outside: MoveOutside | None = None,
        *,
        loss_scale: Any = None,
        clipping: Any = None,
        ema: Any = None,
        parts: Sequence[StepPart] = (),
        max_rejected_steps: int = 100,
        micro_batch_size: int | None = None,
        ranks: Ranks = ALONE,
    ):
        super().__init__(auto_prefix=False)
        check_type("ranks", ranks, Ranks, "the ranks of a job; leave it out for one process")
        parts = collect_parts(network, loss_scale=loss_scale, clipping=clipping, ema=ema, parts=parts)
        trainable = network.trainable_params()
        check_dense(network)
        check_float32(trainable)
        self.direction = direction
        self.line_search = line_search
        self._outside = outside
        self._max_rejected_steps = max_rejected_steps
        self.network = network
        self.parts = parts
        self._registered_parts = nn.CellList(list(parts), auto_prefix=False)
        self.loss_scale = next(iter(parts_of(LossScale, parts)), LossScale())
        self.optimizer = UnitRate(lambda: self.memory.n_steps)
        trainable_ids = {id(parameter) for parameter in trainable}
        self._untrained_parameters = make_copies([p for p in network.get_parameters() if id(p) not in trainable_ids])
        self._weights = make_vectors(trainable)
        self.subspace = make_projection(components, ranks)
        self.objective = Objective(
            network,
            trainable,
            self._weights,
            ranks.mean(),
            micro_batch_size,
            self._mask_drawer(network, ranks),
            self.loss_scale,
            parts,
        )
        self._repeats = False
        self.memory = SearchMemory(direction.initial())
        self._mode = TrainingMode(self, network)
        check_names(self)
        self._binary_cross_entropy = ExactBinaryCrossEntropy(network)
        self._parameter_memory = KnownMemory(self.get_parameters())

    @property
    def ema(self) -> EMA | None:
        """Return the moving average of the network; None without one."""
        return average_of(self.parts)

    def state(self) -> dict[str, np.ndarray]:
        """Return, by name, the search's memory and every parameter except the learning rates."""
        memory = {_SEARCH + name: value for name, value in memory_arrays(self.memory).items()}
        return to_arrays(parameters_to_save(self)) | memory

    def restore(self, arrays: Mapping[str, np.ndarray], source: str) -> None:
        """Restore the parameters and the search's memory from the arrays that ``state`` returned; see ``Step``.

        Raises:
            ConfigError: they are from a search with another direction rule or another k.
            CheckpointError: an array is missing or has another shape; the message begins with ``source``.
        """
        fields = {name.removeprefix(_SEARCH): value for name, value in arrays.items() if name.startswith(_SEARCH)}
        memory = memory_from_arrays(fields, self.memory)
        if memory is None:
            raise ConfigError(
                "search.rule and search.n_components can't change in a run, because H or the momentum would not fit; "
                "leave them, or begin in a new folder"
            )
        from_arrays(parameters_to_save(self), arrays, source)
        self.memory = memory

    @clearing_failures
    def __call__(self, *inputs: Tensor | np.ndarray) -> SearchResult:
        self._mode.ensure()
        self._parameter_memory.ensure()
        with self._binary_cross_entropy.in_use():
            return self.construct(*as_tensors(inputs))

    def construct(self, *inputs: Tensor) -> SearchResult:
        """Take one step; see the class."""
        self._give_up_after_too_many()
        clock = Clock()
        before = self._untrained_parameters.save()
        here = self.objective.gradient(inputs)
        subspace_grad = self.subspace.project(here.grad)
        loss = float(here.loss.asnumpy())
        clock.lap("gradient")
        # P g is the same on every rank, and is not finite if an entry of g is not.
        all_finite = bool(np.isfinite([loss, here.raw_norm, *subspace_grad]).all())
        scale = self.loss_scale.scale_of_step()
        self.loss_scale.observe(Tensor(all_finite))
        of_scale = [number.asnumpy().item() for number in (*scale, *self.loss_scale.overflows())]
        telemetry = here.telemetry | dict(zip(self.loss_scale.telemetry, of_scale, strict=True))
        reset = partial(self._untrained_parameters.restore, before)
        if not all_finite:
            reset()
            return self._skipped(here.loss, len(subspace_grad), clock.laps, telemetry)
        after = self._untrained_parameters.save()
        self._check_repeats(loss, inputs, reset)

        proposal = self.direction.propose(self.memory.direction, subspace_grad)
        coordinates = [proposal.direction] if self._outside is None else [proposal.direction, subspace_grad]
        direction, *inside = self.subspace.back_project(*coordinates)
        line = Line(self._weights, direction)
        clock.lap("direction")

        along = LineObjective(line, proposal, loss, reset, self.objective, inputs, self.subspace.project)
        try:
            line_result = self.line_search.search(along)
            clock.lap("trials")
            line.move_to(line_result.step_size)
            if line_result.accepted:
                self._check_repeats(line_result.loss, inputs, reset)
                self._repeats = True
        except BaseException:
            line.move_to(0.0)
            reset()
            raise

        self._untrained_parameters.restore(after if line_result.accepted else before)
        momentum = self.memory.residual_momentum
        moved_outside = 0.0
        if self._outside is not None:
            momentum, moved_outside = self._outside.move(self._weights, here.grad, inside[0], momentum)
        direction_state = self.memory.direction
        if line_result.accepted:
            direction_state = self.direction.follow(proposal, subspace_grad, line_result.step_size)
            for part in parts_of(WeightsPart, self.parts):
                part()
        self.memory = self.memory.after(line_result.accepted, direction=direction_state, residual_momentum=momentum)
        clock.lap("commit")
        return SearchResult(
            loss=here.loss,
            loss_after=line_result.loss,
            outcome=Outcome.ACCEPTED if line_result.accepted else Outcome.NO_DECREASE,
            subspace_step=line_result.step_size * proposal.direction,
            seconds=clock.laps,
            step_size=line_result.step_size,
            n_trials=along.n_trials,
            n_forward=1 + along.n_forward,
            n_backward=1 + along.n_backward,
            slope=proposal.slope,
            curvature=proposal.curvature,
            pair_used=proposal.pair_used,
            condition=proposal.condition,
            captured_fraction=float(subspace_grad @ subspace_grad) / (here.grad_square or math.nan),
            moved_inside=line_result.step_size * float(np.linalg.norm(proposal.direction)),
            moved_outside=moved_outside,
            grad_norm=here.raw_norm,
            telemetry=telemetry,
        )

    def _skipped(
        self, loss: Tensor, n_components: int, seconds: dict[str, float], telemetry: Mapping[str, float]
    ) -> SearchResult:
        """Return the result of a step that is skipped, because the loss or its gradient is not finite."""
        self.memory = self.memory.after(accepted=False)
        return SearchResult(
            loss=loss,
            loss_after=float(loss.asnumpy()),
            outcome=Outcome.NON_FINITE_GRADIENT,
            subspace_step=np.zeros(n_components),
            seconds=seconds,
            n_forward=1,
            n_backward=1,
            telemetry=telemetry,
        )

    def _mask_drawer(self, network: nn.Cell, ranks: Ranks) -> Callable[[int], object]:
        """Return a function that draws a micro-batch's dropout masks, the same in every forward pass of a step."""
        if not make_replayable(network):
            return lambda number: None
        seed = int(ranks.gather([ms.get_seed() or 0])[0, 0])  # rank 0's
        return lambda number: draw_masks(seed, self.memory.n_steps, number * ranks.group_size + ranks.rank)

    def _give_up_after_too_many(self) -> None:
        if self.memory.n_rejected_in_a_row >= self._max_rejected_steps:
            raise NothingAcceptedError(
                f"{self.memory.n_rejected_in_a_row} steps in a row were rejected (max_rejected_steps). The start may "
                "already be a minimum in this subspace, the batches may be too small or noisy, or the loss not finite: "
                "try a larger batch, more trials (max_trials), a smaller sigma, or initial_scaling"
            )

    def _check_repeats(self, loss: float, inputs: Sequence[Tensor], reset: Callable[[], object]) -> None:
        """Check that the current weights give the batch the same loss again; otherwise trials would compare noise.

        Every step is checked at its start until one is accepted. That one is checked at its end too, because a head
        of zeros hides all noise until it has moved.
        """
        if self._repeats:
            return
        reset()
        again = self.objective.loss(inputs)
        reset()
        if not abs(again - loss) <= _ROUNDING * abs(loss):
            raise SearchError(
                f"the network gave the loss {loss:.6g}, then {again:.6g} for the same batch and weights: its forward "
                "pass draws random numbers that the search can't repeat, or changes state outside its parameters, such "
                "as a counter. Use MindSpore's cells, such as nn.Dropout and nn.MultiheadAttention, whose masks are "
                "made repeatable, instead of ops.dropout; and keep all state in parameters"
            )
