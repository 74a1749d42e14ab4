"""SubspaceTrainStep: one step of stage 2, the search in the subspace.

The step is driven from the host: a compiled graph for the gradient and one for a trial's loss, with passes over the
basis and vectors between them. ``tests/benchmarks/test_search_step.py`` measures what it costs beside those parts.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from dimred.config.search import SearchOptions
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import NothingAcceptedError, SearchError
from dimred.search.basis_check import Basis, leading_components
from dimred.search.bfgs import InverseBFGS
from dimred.search.direction import DirectionRule, NoDirection, bounded
from dimred.search.dropout import make_replayable
from dimred.search.line_search import ArmijoBacktracking, FixedStep, Line
from dimred.search.objective import Objective
from dimred.search.outside import make_residual, make_weight_decay
from dimred.search.projected_sgd import ProjectedSGD
from dimred.search.result import Clock, Outcome, SearchResult, SearchState
from dimred.subspace.basis import load_basis
from dimred.train_step.clipping import NoClipping
from dimred.train_step.ema import NoEMA
from dimred.train_step.loss_scale import NoLossScale
from dimred.vectors.base import make_copies, make_projection, make_vectors

_SAME_LOSS_TOLERANCE = 1e-4
_PARTS = ("optimizer", "micro_batch_size", "ranks", "loss_scale", "clipping", "ema")


class SubspaceTrainStep(nn.Cell):
    """One search step on one batch: direction in the subspace, step length, residual step.

    With loss f, gradient g, basis P (k, M), weights w (M,), all float32, and H, g_prev, s_prev in float64 on the host::

        g_k = P g                                          subspace gradient
        H <- BFGS(H, s_prev, g_k - g_prev)                 where the pair passes the curvature guard
        d_k = -H g_k;  d = P' d_k;  slope = g_k' d_k
        t = rho^j, the first j with f(w + t d) < f(w) + sigma t slope
        m <- gamma m + (g - P' g_k)
        w <- w + t d - alpha m

    (Li et al., Low Dimensional Trajectory Hypothesis is True: DNNs can be Trained in Tiny Subspaces, 2022, algorithm 2;
    mindspore.boost's dim_reduce for the residual momentum.) With ``residual="continued"`` the last two lines are one
    step of ``optimizer``, from w + t d on the gradient g - P' g_k; without a basis (``n_components=0``) the whole is
    ordinary training with it.

    Where no trial is accepted t = 0, and H, g_prev, s_prev stay as they were. Trials change neither BatchNorm
    statistics nor any other untrained parameter; an accepted step leaves exactly the statistics of one ordinary
    training step, a rejected one those from before it, unless the residual is a training step of its own
    (``continued``). A loss or gradient that is not finite skips the step and changes nothing, the optimizer's state
    included. With the residual off and no weight decay no ``bfgs`` step makes its batch's loss worse; both act after
    the line search and can raise it.

    Works in graph mode and PyNative. Call it, or hand it to ``mindspore.train.Model`` with its callbacks (no sink mode:
    the search loop runs on the host). Every ``nn.Dropout`` of the network is replaced, in place, by one whose mask can
    be drawn again.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        basis: a ``SubspaceBasis`` of the network's trainable weights, or the path of one; None with ``n_components=0``.
        optimizer: of ``residual="continued"``, over the network's trainable parameters; its learning rate and their
            schedule are its own.
        micro_batch_size: rows of a micro-batch. The gradient and every loss of the search are means over the whole
            batch, computed in parts of so many rows; None takes the batch whole.
        ranks: of a data-parallel job, each of which calls the step with its own part of the batch. Every number that a
            decision depends on is a mean or sum over all of them, so they can't differ; each holds a part of the basis.
        loss_scale: of the gradient; learns from each step whether it was finite.
        clipping: of the gradient g, before anything is made of it.
        ema: of the network, updated after each accepted step, and after each training step of the residual.
        options: rho, gamma, alpha, sigma, residual, n_components, max_trials, search, curvature_pair, damping,
            initial_scaling, max_step, learning_rate, momentum, weight_decay, max_rejected_steps: see ``SearchOptions``.

    Inputs:
        the inputs of ``network``.

    Outputs:
        SearchResult; its first field is the loss, Tensor () float32.

    Raises:
        ConfigError: an option is unknown, outside its range, or does not go with the others.
        BasisMismatchError: the basis does not fit the network's trainable weights.
        NothingAcceptedError: from a step, before it changes anything: the last ``max_rejected_steps`` were rejected.
        SearchError: from the first step, if the network draws random numbers that can't be repeated.
    """

    def __init__(
        self,
        network: nn.Cell,
        basis: Basis | str | os.PathLike[str] | None,
        *,
        optimizer: nn.Optimizer | None = None,
        micro_batch_size: int | None = None,
        ranks: Ranks = ALONE,
        loss_scale: NoLossScale | None = None,
        clipping: nn.Cell | None = None,
        ema: nn.Cell | None = None,
        **options: Any,
    ):
        super().__init__(auto_prefix=False)
        self.options = SearchOptions.checked(options, exact=True, other_keys=_PARTS)
        trainable = network.trainable_params()
        if isinstance(basis, str | os.PathLike):
            basis = load_basis(basis, network=network)
        components = leading_components(basis, trainable, self.options.n_components)
        rule, self.line_search = make_rules(self.options, len(components))
        self.direction_rule = bounded(rule, self.options.max_step, basis, len(components))
        self._residual = make_residual(self.options, optimizer, trainable)
        self._weight_decay = make_weight_decay(self.options.weight_decay, trainable)
        self.network = network
        self.loss_scale = NoLossScale() if loss_scale is None else loss_scale
        self.optimizer = optimizer
        self.ema = ema
        self._update_ema = NoEMA() if ema is None else ema
        self._draw_dropout_masks, self._ranks = make_replayable(network), ranks
        trained = {id(parameter) for parameter in trainable}
        self._untrained = make_copies([p for p in network.get_parameters() if id(p) not in trained])
        self._weights = make_vectors(trainable)
        self._subspace = make_projection(components, ranks)
        self._objective = Objective(
            network,
            trainable,
            self._weights,
            micro_batch_size,
            ranks.mean(),
            self._draw_masks,
            self.loss_scale,
            NoClipping() if clipping is None else clipping,
        )
        self._forward_is_checked = len(components) == 0  # no trial is compared with anything
        self.state = SearchState(self.direction_rule.initial())
        self.set_train(True)

    def __call__(self, *inputs: Tensor) -> SearchResult:
        return self.construct(*inputs)

    def construct(self, *inputs: Tensor) -> SearchResult:
        """One step; see the class."""
        self._give_up_after_too_many()
        clock = Clock()
        before = self._untrained.save()
        here = self._objective.gradient(inputs)
        subspace_grad = self._subspace.project(here.grad)
        loss = float(here.loss.asnumpy())
        clock.lap("gradient")
        # P g is the same on every rank, and not finite where an entry of g is not; without a basis |g| has to do.
        all_finite = bool(np.isfinite([loss, here.raw_norm, *subspace_grad]).all())
        scale: dict[str, Any] = {"loss_scale": float(self.loss_scale.current())}
        self.loss_scale.observe(Tensor(all_finite))
        scale["n_overflows"] = int(self.loss_scale.overflows())
        if not all_finite:
            self._untrained.restore(before)
            self.state = self.state.after(is_progress=False)
            nothing = np.zeros(len(subspace_grad))
            return SearchResult(here.loss, loss, Outcome.NON_FINITE_GRADIENT, nothing, clock.laps, **scale)
        after = self._untrained.save()
        self._check_forward(inputs, before, loss)

        proposal = self.direction_rule.propose(self.state.direction, subspace_grad)
        wanted = [proposal.direction, subspace_grad] if self._residual.needs_inside else [proposal.direction]
        direction, *inside = self._subspace.back_project(*wanted)
        line = Line(self._weights, direction)
        clock.lap("direction")

        def loss_at(step_size: float) -> float:
            line.move_to(step_size)
            self._untrained.restore(before)
            return self._objective.loss(inputs)

        end_grad = None
        try:
            found = self.line_search.search(loss_at, loss, proposal.slope)
            clock.lap("trials")
            line.move_to(found.step_size)
            if found.accepted and self.direction_rule.wants_end_gradient:
                self._untrained.restore(before)
                end_grad = self._subspace.project(self._objective.gradient(inputs).grad)
                clock.lap("end_gradient")
        except BaseException:
            line.move_to(0.0)
            self._untrained.restore(before)
            raise

        is_training = found.accepted or self._residual.is_training
        self._untrained.restore(after if is_training else before)
        momentum, moved_outside = self._residual.move(
            self._weights, here.grad, inside[0] if inside else None, self.state.residual_momentum
        )
        decayed, direction_state = 0.0, self.state.direction
        if found.accepted:
            decayed = self._weight_decay.move(self._weights, line.start)
            direction_state = self.direction_rule.follow(proposal, subspace_grad, found.step_size, end_grad)
        if is_training:
            self._update_ema()
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
            decayed=decayed,
            n_gradients=1 if end_grad is None else 2,
            grad_norm=here.raw_norm,
            **scale,
        )

    def _draw_masks(self, micro_batch: int) -> None:
        """The dropout masks of this rank's micro-batch in this step: the same in all its forward passes."""
        self._draw_dropout_masks(self.state.n_steps, micro_batch * self._ranks.group_size + self._ranks.rank)

    def _give_up_after_too_many(self) -> None:
        if self.state.n_rejected_in_a_row >= self.options.max_rejected_steps:
            raise NothingAcceptedError(
                f"no step was accepted {self.state.n_rejected_in_a_row} times in a row (max_rejected_steps). The "
                "start may already be a minimum in this subspace, the batches too small or noisy, or the loss not "
                "finite: try a larger batch, more trials (max_trials), or a smaller sigma"
            )

    def _check_forward(self, inputs: Sequence[Tensor], before: Sequence[Any], loss: float) -> None:
        """Once, at the first step: the same weights and batch must give the same loss, or trials compare noise."""
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


def make_rules(options: SearchOptions, n_components: int) -> tuple[DirectionRule, ArmijoBacktracking | FixedStep]:
    """Which way and how far, as ``options.search`` names them; nowhere without components."""
    if n_components == 0:
        return NoDirection(), ArmijoBacktracking(options.rho, options.sigma, options.max_trials)
    if options.search == "bfgs":
        quasi_newton = InverseBFGS(n_components, options.curvature_pair, options.damping, options.initial_scaling)
        return quasi_newton, ArmijoBacktracking(options.rho, options.sigma, options.max_trials)
    return ProjectedSGD(n_components, options.learning_rate, options.momentum), FixedStep()
