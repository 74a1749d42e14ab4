"""SubspaceTrainStep: one step of stage 2, the search in the subspace.

The step is driven from the host: a compiled graph for the gradient and one for a trial's loss, with passes over the
basis and vectors between them. ``tests/benchmarks/test_search_step.py`` measures what it takes beside those parts.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import NothingAcceptedError, SearchError, check_number
from dimred.search.basis_check import Basis, leading_components
from dimred.search.direction import DirectionRule, MaxStep, Proposal, bounded
from dimred.search.dropout import make_replayable
from dimred.search.line_search import Line
from dimred.search.objective import Evaluation, Objective
from dimred.search.outside import make_residual, make_weight_decay
from dimred.search.projected_sgd import LearningRate
from dimred.search.result import Clock, Outcome, SearchResult, SearchState
from dimred.search.rules import LineSearch, make_rules
from dimred.train_step.loss_scale import NoLossScale
from dimred.train_step.network_state import Saved, SideState
from dimred.vectors.projection import make_projection
from dimred.vectors.weight_vector import make_weights

_SAME_LOSS_TOLERANCE = 1e-4


class SubspaceTrainStep(nn.Cell):
    """One search step on one batch: direction in the subspace, step length, residual momentum.

    With loss f, gradient g, basis P (k, M), weights w (M,), all float32, and H, g_prev, s_prev in float64 on the host::

        g_k = P g                                          subspace gradient
        H <- BFGS(H, s_prev, g_k - g_prev)                 where the pair passes the curvature guard
        d_k = -H g_k;  d = P' d_k;  slope = g_k' d_k
        t = rho^j, the first j with f(w + t d) < f(w) + sigma t slope
        m <- gamma m + (g - P' g_k)
        w <- w + t d - alpha m

    (Li et al., Low Dimensional Trajectory Hypothesis is True: DNNs can be Trained in Tiny Subspaces, 2022, algorithm 2;
    mindspore.boost's dim_reduce for the residual momentum.) Where no trial is accepted t = 0, and H, g_prev, s_prev
    stay as they were. Trials change neither BatchNorm statistics nor any other untrained parameter; an accepted step
    leaves exactly the statistics of one ordinary training step, a rejected one those from before it. A loss or gradient
    that is not finite skips the step and changes nothing. With ``alpha`` 0 and no weight decay no ``bfgs``
    step makes its batch's loss worse; what these two move, they move after the search and unguarded.

    Works in graph mode and PyNative, called as a function or by ``mindspore.train.Model`` with its callbacks (no sink
    mode: the search loop runs on the host). Every ``nn.Dropout`` of the network is replaced, in place, by one whose
    mask can be drawn again.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        basis: a ``SubspaceBasis`` of the network's trainable weights.
        rho, sigma, max_trials: see ``ArmijoBacktracking``.
        gamma: momentum of the residual, 0 <= gamma < 1.
        alpha: step size of the residual, at least 0; at 0 the weights stay in start + span(P) and nothing is spent on
            it.
        n_components: how many leading components to search in; all by default (``n_component`` is accepted too).
        search: ``bfgs``; ``sgd`` (momentum in the subspace, no line search); ``average`` (the same, on a basis of the
            raw snapshots).
        curvature_pair, damping, initial_scaling: see ``InverseBFGS``.
        max_step: longest direction |d_k|, in weight-space distance; ``trajectory`` for the snapshots' own root mean
            square distance from their mean; None for no bound. See ``dimred.search.direction``.
        learning_rate, momentum: of ``sgd`` and ``average``, see ``ProjectedSGD``.
        weight_decay: w <- w - weight_decay w with every accepted step; a number, or one for each trainable parameter.
            See ``dimred.search.outside``.
        max_rejected_steps: rejected or skipped steps in a row after which the next call gives up.
        micro_batch_size: rows of a micro-batch. The gradient and every loss of the search are means over the whole
            batch, computed in pieces of so many rows; None takes the batch whole.
        ranks: of a data-parallel job, each of which calls the step with its own part of the batch. Every number that a
            decision hangs on is a mean or sum over all of them, so they can't differ; each holds a part of the basis.
        loss_scale: of the gradient; learns from each step whether it was finite.
        clipping: of the gradient g, before anything is made of it.
        ema: of the network, updated after each accepted step.

    Inputs:
        the inputs of ``network``.

    Outputs:
        SearchResult; its first field is the loss, Tensor () float32.

    Raises:
        ConfigError: an option outside its range.
        BasisMismatchError: the basis does not fit the network's trainable weights.
        NothingAcceptedError: from a step, before it changes anything: the steps before it were rejected.
        SearchError: from the first step, if the network draws random numbers that can't be repeated.
    """

    def __init__(
        self,
        network: nn.Cell,
        basis: Basis,
        *,
        rho: float = 0.55,
        gamma: float = 0.9,
        alpha: float = 0.001,
        sigma: float = 0.4,
        n_components: int | None = None,
        n_component: int | None = None,
        max_trials: int = 10,
        search: str = "bfgs",
        curvature_pair: str = "consecutive",
        damping: bool = False,
        initial_scaling: bool = False,
        max_step: MaxStep = None,
        learning_rate: LearningRate = 0.1,
        momentum: float = 0.9,
        weight_decay: float | Sequence[float] = 0.0,
        max_rejected_steps: int = 100,
        micro_batch_size: int | None = None,
        ranks: Ranks = ALONE,
        loss_scale: NoLossScale | None = None,
        clipping: nn.Cell | None = None,
        ema: nn.Cell | None = None,
    ):
        super().__init__(auto_prefix=False)
        check_number("max_rejected_steps", max_rejected_steps, at_least=1, whole=True, usual="100 is usual")
        trainable = network.trainable_params()
        self._subspace = make_projection(leading_components(basis, trainable, n_components, n_component), ranks)
        k = self._subspace.n_components
        self.direction_rule: DirectionRule
        self.line_search: LineSearch
        rule, self.line_search = make_rules(
            search,
            k,
            rho=rho,
            sigma=sigma,
            max_trials=max_trials,
            curvature_pair=curvature_pair,
            damping=damping,
            initial_scaling=initial_scaling,
            learning_rate=learning_rate,
            momentum=momentum,
        )
        self.direction_rule = bounded(rule, max_step, basis, k)
        self._residual = make_residual(gamma, alpha)
        self._weight_decay = make_weight_decay(weight_decay, trainable)
        self.max_rejected_steps = max_rejected_steps
        self.network = network
        self._draw_dropout_masks = make_replayable(network)
        trained = {id(parameter) for parameter in trainable}
        self._side_state = SideState([p for p in network.get_parameters() if id(p) not in trained])
        self._objective = Objective(
            network, trainable, micro_batch_size, ranks.mean(), self._draw_masks, loss_scale, clipping
        )
        self.loss_scale = loss_scale
        self.ema = ema
        self._weights = make_weights(trainable)
        self._forward_is_checked = False
        self.state = SearchState(self.direction_rule.initial(), None, 0, 0)
        self.set_train(True)

    def __call__(self, *inputs: Tensor) -> SearchResult:
        return self.construct(*inputs)

    def construct(self, *inputs: Tensor) -> SearchResult:
        """One step; see the class."""
        self._give_up_after_too_many()
        clock = Clock()
        before = self._side_state.save()
        here = self._objective.gradient(inputs)
        subspace_grad = self._subspace.project(here.grad)
        loss = float(here.loss.asnumpy())
        clock.lap("gradient")
        # Every entry of g meets an entry of P, so one that is not finite makes P g not finite: no pass over g is
        # needed.
        all_finite = math.isfinite(loss) and bool(np.isfinite(subspace_grad).all())
        scale = self._tell_loss_scale(all_finite)
        if not all_finite:
            self._side_state.restore(before)
            return self._skipped(here.loss, clock, scale)
        after = self._side_state.save()
        self._check_forward(inputs, before, loss)

        proposal = self.direction_rule.propose(self.state.direction, subspace_grad)
        wanted = [proposal.direction, subspace_grad] if self._residual.wants_inside else [proposal.direction]
        direction, *inside = self._subspace.back_project(*wanted)
        line = Line(self._weights, direction)
        clock.lap("direction")

        def loss_at(step_size: float) -> float:
            line.move_to(step_size)
            self._side_state.restore(before)
            return self._objective.loss(inputs)

        try:
            found = self.line_search.search(loss_at, loss, proposal.slope)
            clock.lap("trials")
            end_grad = None
            line.move_to(found.step_size)
            if found.accepted and self.direction_rule.wants_end_gradient:
                self._side_state.restore(before)
                end_grad = self._subspace.project(self._objective.gradient(inputs).grad)
                clock.lap("end_gradient")
        except BaseException:
            line.move_to(0.0)
            self._side_state.restore(before)
            raise

        self._side_state.restore(after if found.accepted else before)
        moved_outside, decayed = self._leave(line, here, inside[0] if inside else None, found.accepted)
        if self.ema is not None and found.accepted:
            self.ema()
        self._remember(proposal, subspace_grad, found.step_size, end_grad, found.accepted)
        clock.lap("commit")
        return SearchResult(
            loss=here.loss,
            loss_after=found.loss,
            outcome=Outcome.ACCEPTED if found.accepted else Outcome.NO_DECREASE,
            step_size=found.step_size,
            n_trials=found.n_trials,
            slope=proposal.slope,
            curvature=proposal.curvature,
            pair_used=proposal.pair_used,
            condition=proposal.condition,
            captured_share=here.share_of(subspace_grad),
            subspace_step=found.step_size * proposal.direction,
            moved_inside=found.step_size * float(np.linalg.norm(proposal.direction)),
            moved_outside=moved_outside,
            decayed=decayed,
            n_gradients=1 if end_grad is None else 2,
            grad_norm=here.raw_norm,
            seconds=clock.laps,
            **scale,
        )

    def _draw_masks(self, micro_batch: int) -> None:
        """The dropout masks of a micro-batch in this step: the same in all its forward passes."""
        self._draw_dropout_masks(self.state.n_steps, micro_batch)

    def _tell_loss_scale(self, all_finite: bool) -> dict[str, Any]:
        """The scale of this step's gradient, and the overflows so far."""
        if self.loss_scale is None:
            return {"loss_scale": 1.0, "n_overflows": 0}
        used = float(self.loss_scale.current())
        self.loss_scale(Tensor(all_finite))
        return {"loss_scale": used, "n_overflows": int(self.loss_scale.overflows())}

    def _leave(self, line: Line, here: Evaluation, inside: Tensor | None, accepted: bool) -> tuple[float, float]:
        """Residual momentum and weight decay, from where the search ended; the distances they moved."""
        momentum, moved_outside = self._residual.move(self._weights, here.grad, inside, self.state.residual_momentum)
        decayed = self._weight_decay.move(self._weights, line.start) if accepted else 0.0
        self.state = self.state._replace(residual_momentum=momentum)
        return moved_outside, decayed

    def _remember(
        self,
        proposal: Proposal,
        subspace_grad: np.ndarray,
        step_size: float,
        end_grad: np.ndarray | None,
        accepted: bool,
    ) -> None:
        """Count the step, and keep the direction rule's new state if it was accepted."""
        n_steps, in_a_row = self.state.n_steps + 1, self.state.n_rejected_in_a_row + 1
        self.state = self.state._replace(n_steps=n_steps, n_rejected_in_a_row=0 if accepted else in_a_row)
        if accepted:
            followed = self.direction_rule.follow(proposal, subspace_grad, step_size, end_grad)
            self.state = self.state._replace(direction=followed)

    def _skipped(self, loss: Tensor, clock: Clock, scale: dict[str, Any]) -> SearchResult:
        """Count the step; nothing else changes."""
        self.state = self.state._replace(
            n_steps=self.state.n_steps + 1, n_rejected_in_a_row=self.state.n_rejected_in_a_row + 1
        )
        return SearchResult.skipped(self._subspace.n_components, loss, clock.laps, **scale)

    def _give_up_after_too_many(self) -> None:
        if self.state.n_rejected_in_a_row >= self.max_rejected_steps:
            raise NothingAcceptedError(
                f"no step was accepted {self.state.n_rejected_in_a_row} times in a row (max_rejected_steps). The "
                "start may already be a minimum in this subspace, the batches too small or noisy, or the loss not "
                "finite: try a larger batch, more trials (max_trials), or a smaller sigma"
            )

    def _check_forward(self, inputs: Sequence[Tensor], before: Saved, loss: float) -> None:
        """Once, at the first step: the same weights and batch must give the same loss, or trials compare noise."""
        if self._forward_is_checked:
            return
        self._side_state.restore(before)
        again = self._objective.loss(inputs)
        self._side_state.restore(before)
        if not abs(again - loss) <= _SAME_LOSS_TOLERANCE * max(1.0, abs(loss)):
            raise SearchError(
                f"the network gave the loss {loss:.6g}, and {again:.6g} for the same batch and weights: its forward "
                "pass draws random numbers the search can't repeat. Use nn.Dropout cells, which are made repeatable, "
                "in place of ops.dropout"
            )
        self._forward_is_checked = True
