"""Make one step of the search in the subspace.

The host drives the step: one compiled graph computes the gradient and one a trial's loss, with passes over the basis
and vectors between them. ``tests/benchmarks/test_search_step.py`` compares its cost with the sum of those parts.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import NothingAcceptedError, SearchError
from dimred.search_step.direction import InverseBFGS, ProjectedSGD
from dimred.search_step.dropout import make_replayable
from dimred.search_step.line_search import ArmijoBacktracking, FixedStep
from dimred.search_step.moves import Line, OptimizerOutside, ResidualMomentum
from dimred.search_step.objective import Objective
from dimred.search_step.result import Clock, Outcome, SearchResult, SearchState
from dimred.train_step.loss_scale import StaticLossScale
from dimred.train_step.network_state import TrainingMode
from dimred.vectors.projection import make_projection
from dimred.vectors.weights import make_copies, make_vectors

_SAME_LOSS_TOLERANCE = 1e-4


class SearchStep(nn.Cell):
    """A cell that makes one search step on one batch: along a direction in the subspace, and then outside it.

    With loss f, gradient g, basis P (k, M), weights w (M,), all float32, and H, g_prev, s_prev in float64 on the host::

        g_k = P g                                          subspace gradient
        H <- BFGS(H, s_prev, g_k - g_prev)                 if the pair passes the curvature guard
        d_k = -H g_k;  d = P' d_k;  slope = g_k' d_k
        t = rho^j, the first j with f(w + t d) < f(w) + sigma t slope
        m <- gamma m + (g - P' g_k)
        w <- w + t d - alpha m

    (Li et al., Low Dimensional Trajectory Hypothesis is True: DNNs can be Trained in Tiny Subspaces, 2022, algorithm 2;
    mindspore.boost's dim_reduce for the residual momentum.) With an ``optimizer``, such as a cooldown's, the last two
    lines are replaced by its step, from w + t d on the gradient g - P' g_k.

    If no trial is accepted, t = 0, and H, g_prev and s_prev stay as they were. Trials change neither BatchNorm
    statistics nor any other untrained parameter. An accepted step leaves exactly the statistics of one ordinary
    training step, a rejected one those from before it. A step with an ``optimizer`` is a training step whatever the
    line search finds: statistics and EMA follow it, and it does not count as rejected, because a cooldown that ended
    early would stop at a high rate. If the loss or gradient is not finite, the step is skipped and changes nothing, not
    even the optimizer's state. With ``alpha=0`` and no ``optimizer``, no ``bfgs`` step raises its batch's loss; a
    step outside the subspace follows the line search and can raise it.

    The step works in graph mode and PyNative. Call it, or hand it to ``mindspore.train.Model`` with its callbacks (but
    not in sink mode, as the search loop runs on the host). It replaces every dropout cell of the network, in place,
    with one whose mask can be drawn again. Only this step draws new masks for these cells: with any other step they
    keep the last ones, so train on in a network of its own, to which the weights are copied.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        components: P, orthonormal rows (k, M) float32 over the network's trainable weights in their order.
        rule: ``bfgs`` with Armijo's line search, or ``sgd`` with a fixed step.
        rho, sigma, max_trials: see ``ArmijoBacktracking``.
        max_rejected_steps: number of rejected steps in a row after which the search gives up.
        gamma, alpha: see ``ResidualMomentum``; with ``alpha=0`` there is no step outside the subspace.
        learning_rate, momentum: see ``ProjectedSGD``.
        optimizer: makes the step outside the subspace in place of ``gamma`` and ``alpha``, with a learning rate and
            schedule of its own; an optimizer of the network's trainable parameters.
        micro_batch_size: rows of a micro-batch. The gradient and every loss of the search are means over the whole
            batch, computed in parts of this many rows; None takes the batch whole.
        ranks: the ranks of a data-parallel job, each of which calls the step with its own part of the batch and holds a
            part of the basis. Every number that a decision depends on is a mean or sum over all of them, so their
            decisions can't differ.
        loss_scale: ``StaticLossScale`` or ``DynamicLossScale``, which counts the gradients that are not finite. Such a
            step is skipped in any case.
        clipping: ``Clipping``, which clips the gradient g before it is used.
        ema: ``EMA`` of the network, updated after each training step.

    Inputs:
        the inputs of ``network``.

    Outputs:
        SearchResult; its first field is the loss, Tensor () float32.

    Raises:
        ConfigError: the optimizer's parameters are not exactly the trainable ones, or not float32; or
            ``micro_batch_size`` is below 1. The first step also raises it if the loss is not one number.
        NothingAcceptedError: the last ``max_rejected_steps`` steps were rejected; the next one raises it before it
            changes anything.
        SearchError: the network draws random numbers that can't be repeated; the first step raises it.
    """

    def __init__(
        self,
        network: nn.Cell,
        components: np.ndarray,
        *,
        rule: str,
        rho: float,
        sigma: float,
        max_trials: int,
        max_rejected_steps: int,
        gamma: float,
        alpha: float,
        learning_rate: float | Sequence[float] | Callable[[int], float],
        momentum: float,
        optimizer: nn.Optimizer | None = None,
        micro_batch_size: int | None = None,
        ranks: Ranks = ALONE,
        loss_scale: StaticLossScale | None = None,
        clipping: nn.Cell | None = None,
        ema: nn.Cell | None = None,
    ):
        super().__init__(auto_prefix=False)
        trainable = network.trainable_params()
        self.direction_rule: InverseBFGS | ProjectedSGD = InverseBFGS(len(components))
        self.line_search: ArmijoBacktracking | FixedStep = ArmijoBacktracking(rho, sigma, max_trials)
        if rule == "sgd":
            self.direction_rule = ProjectedSGD(len(components), learning_rate, momentum)
            self.line_search = FixedStep()
        self._max_rejected_steps = max_rejected_steps
        self._outside: Any = None
        if optimizer is not None:
            self._outside = OptimizerOutside(optimizer, trainable)
        elif alpha > 0:
            self._outside = ResidualMomentum(gamma, alpha)
        self.network = network
        self.loss_scale = loss_scale
        self.optimizer = optimizer
        self.ballot = None  # a step reads the device midway, so the ranks agree before each one instead
        self.ema = ema
        self._draw_dropout_masks, self._ranks = make_replayable(network), ranks
        trained = {id(parameter) for parameter in trainable}
        self._untrained = make_copies([p for p in network.get_parameters() if id(p) not in trained])
        self._weights = make_vectors(trainable)
        self._subspace = make_projection(components, ranks)
        self._objective = Objective(
            network, trainable, self._weights, ranks.mean(), micro_batch_size, self._draw_masks, loss_scale, clipping
        )
        self._forward_is_checked = False
        self.state = SearchState(self.direction_rule.initial())
        self._mode = TrainingMode(self, network)

    def __call__(self, *inputs: Tensor) -> SearchResult:
        self._mode.ensure()
        return self.construct(*inputs)

    def construct(self, *inputs: Tensor) -> SearchResult:
        """Take one step; see the class."""
        self._give_up_after_too_many()
        clock = Clock()
        before = self._untrained.save()
        here = self._objective.gradient(inputs)
        subspace_grad = self._subspace.project(here.grad)
        loss = float(here.loss.asnumpy())
        clock.lap("gradient")
        # P g is the same on every rank, and is not finite if an entry of g is not.
        all_finite = bool(np.isfinite([loss, here.raw_norm, *subspace_grad]).all())
        scale: dict[str, Any] = {}
        if self.loss_scale is not None:
            scale["loss_scale"] = float(self.loss_scale.scale)
            self.loss_scale.observe(Tensor(all_finite))
            scale["n_overflows"] = int(self.loss_scale.n_overflows)
        if not all_finite:
            self._untrained.restore(before)
            self.state = self.state.after(is_progress=False)
            nothing = np.zeros(len(subspace_grad))
            return SearchResult(here.loss, loss, Outcome.NON_FINITE_GRADIENT, nothing, clock.laps, **scale)
        after = self._untrained.save()
        self._check_forward(inputs, before, loss)

        proposal = self.direction_rule.propose(self.state.direction, subspace_grad)
        wanted = [proposal.direction] if self._outside is None else [proposal.direction, subspace_grad]
        direction, *inside = self._subspace.back_project(*wanted)
        line = Line(self._weights, direction)
        clock.lap("direction")

        def loss_at(step_size: float) -> float:
            line.move_to(step_size)
            self._untrained.restore(before)
            return self._objective.loss(inputs)

        try:
            found = self.line_search.search(loss_at, loss, proposal.slope)
            clock.lap("trials")
            line.move_to(found.step_size)
        except BaseException:
            line.move_to(0.0)
            self._untrained.restore(before)
            raise

        is_training = found.accepted or self.optimizer is not None
        self._untrained.restore(after if is_training else before)
        momentum, moved_outside = self.state.residual_momentum, 0.0
        if self._outside is not None:
            momentum, moved_outside = self._outside.move(self._weights, here.grad, inside[0], momentum)
        direction_state = self.state.direction
        if found.accepted:
            direction_state = self.direction_rule.follow(proposal, subspace_grad, found.step_size)
        if is_training and self.ema is not None:
            self.ema()
        self.state = self.state.after(is_training, direction=direction_state, residual_momentum=momentum)
        clock.lap("commit")
        return SearchResult(
            loss=here.loss,
            loss_after=found.loss,
            outcome=Outcome.ACCEPTED if found.accepted else Outcome.NO_DECREASE,
            subspace_step=found.step_size * proposal.direction,
            seconds=clock.laps,
            step_size=found.step_size,
            n_trials=found.n_trials,
            slope=proposal.slope,
            curvature=proposal.curvature,
            pair_used=proposal.pair_used,
            condition=proposal.condition,
            captured_share=float(subspace_grad @ subspace_grad) / (here.grad_square or math.nan),
            moved_inside=found.step_size * float(np.linalg.norm(proposal.direction)),
            moved_outside=moved_outside,
            grad_norm=here.raw_norm,
            **scale,
        )

    def _draw_masks(self, micro_batch: int) -> None:
        """Draw the dropout masks for a micro-batch of this rank; they are the same in all forward passes of a step."""
        self._draw_dropout_masks(self.state.n_steps, micro_batch * self._ranks.group_size + self._ranks.rank)

    def _give_up_after_too_many(self) -> None:
        if self.state.n_rejected_in_a_row >= self._max_rejected_steps:
            raise NothingAcceptedError(
                f"no step was accepted {self.state.n_rejected_in_a_row} times in a row (max_rejected_steps). The "
                "start may already be a minimum in this subspace, the batches too small or noisy, or the loss not "
                "finite: try a larger batch, more trials (max_trials), or a smaller sigma"
            )

    def _check_forward(self, inputs: Sequence[Tensor], before: Sequence[Any], loss: float) -> None:
        """Check once that the same weights and batch give the same loss; otherwise trials would compare noise."""
        if self._forward_is_checked:
            return
        self._untrained.restore(before)
        again = self._objective.loss(inputs)
        self._untrained.restore(before)
        if not abs(again - loss) <= _SAME_LOSS_TOLERANCE * max(1.0, abs(loss)):
            raise SearchError(
                f"the network gave the loss {loss:.6g}, and {again:.6g} for the same batch and weights: its forward "
                "pass draws random numbers the search can't repeat. Use nn.Dropout cells, which are made repeatable, "
                "in place of ops.dropout"
            )
        self._forward_is_checked = True
