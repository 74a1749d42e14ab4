"""SubspaceTrainStep: one step of stage 2, the search in the subspace.

The step is driven from the host over a few small compiled graphs (gradient, trial loss, two passes over the basis): a
data-dependent loop inside one graph took more than twice the time of its parts (``tests/benchmarks/test_search_step.py``).
"""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from dimred.errors import BasisMismatchError, ConfigError, SearchError
from dimred.search.direction import DirectionRule, Proposal
from dimred.search.dropout import make_replayable
from dimred.search.evaluation import Loss, LossAndGradient
from dimred.search.network_state import Along, ReadWeights, SideState, WriteWeights
from dimred.search.projection import BackProject, Project
from dimred.search.residual import ResidualMomentum
from dimred.search.result import Outcome, SearchResult
from dimred.search.rules import LineSearch, make_rules

_SAME_LOSS_TOLERANCE = 1e-4


class Basis(Protocol):
    """What the search asks of a basis: orthonormal rows (k, M) float32, and which weights its columns stand for."""

    components: np.ndarray
    layout: Any


class SearchState(NamedTuple):
    """What the search remembers between steps; a run resumed from it goes on as if it had not stopped.

    Attributes:
        direction: state of the direction rule (for BFGS: H, the pair).
        residual_momentum: m, Tensor (M,) float32; None while alpha is 0.
        n_steps: steps taken, skipped ones included.
        n_rejected_in_a_row: steps since the last accepted one.
    """

    direction: Any
    residual_momentum: Tensor | None
    n_steps: int
    n_rejected_in_a_row: int


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
    mindspore.boost's dim_reduce for the residual momentum.) Where no trial is accepted t = 0, and H, g_prev, s_prev stay as
    they were. Trials change neither BatchNorm statistics nor any other untrained parameter; an accepted step leaves exactly
    the statistics of one ordinary training step, a rejected one those from before it. A loss or gradient that is not finite
    skips the step and changes nothing.

    Works in graph mode and PyNative, called as a function or by ``mindspore.train.Model`` with its callbacks (no sink
    mode: the search loop runs on the host). Every ``nn.Dropout`` of the network is replaced, in place, by one whose mask can
    be drawn again.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        basis: a ``SubspaceBasis`` of the network's trainable weights.
        rho, sigma, max_trials: see ``ArmijoBacktracking``.
        gamma: momentum of the residual, 0 <= gamma < 1.
        alpha: step size of the residual, at least 0; at 0 the weights stay in start + span(P) and nothing is spent on it.
        n_components: how many leading components to search in; all by default (``n_component`` is accepted too).
        search: ``bfgs``; ``sgd`` (momentum in the subspace, no line search); ``average`` (the same, on a basis of the raw
            snapshots).
        curvature_pair, damping, initial_scaling: see ``InverseBFGS``.
        learning_rate, momentum: of ``sgd`` and ``average``, see ``ProjectedSGD``.
        weight_decay: w <- w - weight_decay * w with every step that is not skipped; a number, or one number for each
            trainable parameter.
        max_rejected_steps: rejected or skipped steps in a row before the search gives up.

    Inputs:
        the inputs of ``network``.

    Outputs:
        SearchResult; its first field is the loss, Tensor () float32.

    Raises:
        ConfigError: an option outside its range.
        BasisMismatchError: the basis does not fit the network's trainable weights.
        SearchError: from a step, where the search can't go on; says why.
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
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        weight_decay: float | Sequence[float] = 0.0,
        max_rejected_steps: int = 100,
    ):
        super().__init__(auto_prefix=False)
        if not 0 <= gamma < 1:
            raise ConfigError(f"gamma is {gamma}; it must be at least 0 and below 1 (0.9 is usual)")
        if not 0 <= alpha < math.inf:
            raise ConfigError(
                f"alpha is {alpha}; it must be at least 0 (0.001 is usual, 0 turns the residual step off)"
            )
        if max_rejected_steps < 1:
            raise ConfigError(f"max_rejected_steps is {max_rejected_steps}; it must be at least 1")
        trainable = network.trainable_params()
        components = _checked_components(basis, trainable, _one_of(n_components, n_component))
        self.network = network
        self.alpha = alpha
        self.max_rejected_steps = max_rejected_steps
        self.direction_rule: DirectionRule
        self.line_search: LineSearch
        self.direction_rule, self.line_search = make_rules(
            search,
            len(components),
            rho=rho,
            sigma=sigma,
            max_trials=max_trials,
            curvature_pair=curvature_pair,
            damping=damping,
            initial_scaling=initial_scaling,
            learning_rate=learning_rate,
            momentum=momentum,
        )
        self._dropout_seed = make_replayable(network)
        trained = {id(parameter) for parameter in trainable}
        self._side_state = SideState([p for p in network.get_parameters() if id(p) not in trained])
        self._loss = Loss(network)
        self._loss_and_gradient = LossAndGradient(network, trainable)
        self._read_weights = ReadWeights(trainable)
        self._write_weights = WriteWeights(trainable)
        self._along = Along(auto_prefix=False)
        self._project = Project(auto_prefix=False)
        self._back_project = BackProject(auto_prefix=False)
        self._residual_momentum = ResidualMomentum(gamma)
        self._components = Tensor(components)
        self._decay = _decay_of_each_weight(weight_decay, trainable)
        self._forward_is_checked = False
        self.state = SearchState(self.direction_rule.initial(), None, 0, 0)
        self.set_train(True)

    def __call__(self, *inputs: Tensor) -> SearchResult:
        return self.construct(*inputs)

    def construct(self, *inputs: Tensor) -> SearchResult:
        """One step; see the class."""
        clock = _Clock()
        if self._dropout_seed is not None:
            ops.assign(self._dropout_seed, Tensor(self.state.n_steps, ms.int32))
        before = self._side_state.save()
        loss, grad, grad_square = self._loss_and_gradient(*inputs)
        subspace_grad_tensor = self._project(self._components, grad)
        subspace_grad = subspace_grad_tensor.asnumpy().astype(np.float64)
        loss_value = float(loss.asnumpy())
        clock.lap("gradient")
        # Every entry of g meets an entry of P, so one that is not finite makes P g not finite: no pass over g is needed.
        if not (math.isfinite(loss_value) and np.isfinite(subspace_grad).all()):
            self._side_state.restore(before)
            return self._skipped(loss, clock)
        after = self._side_state.save()
        start = self._read_weights()
        self._check_forward(inputs, before, loss_value)

        proposal = self.direction_rule.propose(self.state.direction, subspace_grad)
        direction = self._back_project(self._components, Tensor(proposal.direction.astype(np.float32)))
        clock.lap("direction")

        def loss_at(step_size: float) -> float:
            self._side_state.restore(before)
            self._write_weights(self._along(start, direction, Tensor(step_size, ms.float32)))
            return float(self._loss(*inputs).asnumpy())

        found = self.line_search.search(loss_at, loss_value, proposal.slope)
        clock.lap("trials")
        end_grad = None
        if found.accepted and self.direction_rule.wants_end_gradient:
            end_grad = self._gradient_here(inputs)
            clock.lap("end_gradient")
        point = self._along(start, direction, Tensor(found.step_size, ms.float32)) if found.accepted else start
        point, momentum, moved_outside = self._outside(point, start, grad, subspace_grad_tensor)
        self._write_weights(point)
        self._side_state.restore(after if found.accepted else before)
        self._remember(proposal, subspace_grad, found.step_size, end_grad, momentum, found.accepted)
        clock.lap("commit")
        return SearchResult(
            loss=loss,
            loss_after=found.loss,
            outcome=Outcome.ACCEPTED if found.accepted else Outcome.NO_DECREASE,
            step_size=found.step_size,
            n_trials=found.n_trials,
            slope=proposal.slope,
            curvature=proposal.curvature,
            pair_used=proposal.pair_used,
            condition=proposal.condition,
            captured_share=_share(float(subspace_grad @ subspace_grad), float(grad_square.asnumpy())),
            moved_inside=found.step_size * float(np.linalg.norm(proposal.direction)),
            moved_outside=moved_outside,
            n_gradients=1 if end_grad is None else 2,
            seconds=clock.laps,
        )

    def _gradient_here(self, inputs: Sequence[Tensor]) -> np.ndarray:
        """The batch's subspace gradient at the weights as they stand, (k,) float64."""
        _, grad, _ = self._loss_and_gradient(*inputs)
        subspace_grad: np.ndarray = self._project(self._components, grad).asnumpy().astype(np.float64)
        return subspace_grad

    def _outside(
        self, point: Tensor, start: Tensor, grad: Tensor, subspace_grad: Tensor
    ) -> tuple[Tensor, Tensor | None, float]:
        """The point after residual momentum and weight decay, the new m, and the distance |alpha m|."""
        if self._decay is not None:
            point = point - start * self._decay
        if self.alpha == 0:
            return point, None, 0.0
        old = self.state.residual_momentum
        inside = self._back_project(self._components, subspace_grad)
        momentum = self._residual_momentum(ops.zeros_like(grad) if old is None else old, grad, inside)
        distance = self.alpha * math.sqrt(float(ops.reduce_sum(momentum * momentum).asnumpy()))
        return self._along(point, momentum, Tensor(-self.alpha, ms.float32)), momentum, distance

    def _remember(
        self,
        proposal: Proposal,
        subspace_grad: np.ndarray,
        step_size: float,
        end_grad: np.ndarray | None,
        momentum: Tensor | None,
        accepted: bool,
    ) -> None:
        direction = self.state.direction
        if accepted:
            direction = self.direction_rule.follow(proposal, subspace_grad, step_size, end_grad)
        rejected = 0 if accepted else self.state.n_rejected_in_a_row + 1
        self.state = SearchState(direction, momentum, self.state.n_steps + 1, rejected)
        self._give_up_after_too_many()

    def _skipped(self, loss: Tensor, clock: "_Clock") -> SearchResult:
        nan = float("nan")
        self.state = self.state._replace(
            n_steps=self.state.n_steps + 1, n_rejected_in_a_row=self.state.n_rejected_in_a_row + 1
        )
        self._give_up_after_too_many()
        return SearchResult(
            loss,
            float(loss.asnumpy()),
            Outcome.NON_FINITE_GRADIENT,
            0.0,
            0,
            nan,
            nan,
            False,
            nan,
            nan,
            0.0,
            0.0,
            1,
            clock.laps,
        )

    def _give_up_after_too_many(self) -> None:
        if self.state.n_rejected_in_a_row >= self.max_rejected_steps:
            raise SearchError(
                f"no step was accepted {self.state.n_rejected_in_a_row} times in a row (max_rejected_steps); the weights are "
                "those of the last accepted step. The start may already be a minimum in this subspace, or the batches "
                "too small or noisy: try a larger batch, more trials (max_trials), or a smaller sigma"
            )

    def _check_forward(self, inputs: Sequence[Tensor], before: Sequence[Tensor], loss: float) -> None:
        """Once, at the first step: the same weights and batch must give the same loss, or trials compare noise."""
        if self._forward_is_checked:
            return
        self._side_state.restore(before)
        again = float(self._loss(*inputs).asnumpy())
        if not abs(again - loss) <= _SAME_LOSS_TOLERANCE * max(1.0, abs(loss)):
            raise SearchError(
                f"the network gave the loss {loss:.6g}, and {again:.6g} for the same batch and weights: its forward pass draws "
                "random numbers the search can't repeat. Use nn.Dropout cells (they are made repeatable), not ops.dropout"
            )
        self._forward_is_checked = True


class _Clock:
    """Wall seconds by part."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.laps[part] = now - self._last
        self._last = now


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")


def _one_of(n_components: int | None, n_component: int | None) -> int | None:
    if n_components is not None and n_component is not None and n_components != n_component:
        raise ConfigError(f"n_components is {n_components} and n_component is {n_component}; give one of them")
    return n_component if n_components is None else n_components


def _checked_components(basis: Basis, trainable: Sequence[ms.Parameter], n_components: int | None) -> np.ndarray:
    """The leading rows of the basis, after checking that its columns stand for these parameters."""
    components = basis.components
    n_weights = sum(parameter.size for parameter in trainable)
    if components.ndim != 2 or components.shape[1] != n_weights:
        raise BasisMismatchError(
            f"the basis has the shape {components.shape}, but the network has {n_weights} trainable weights; fit it on "
            "snapshots of this network"
        )
    if n_components is not None and not 1 <= n_components <= len(components):
        raise ConfigError(
            f"n_components is {n_components}; the basis has {len(components)}, so 1 to {len(components)} are allowed"
        )
    if basis.layout is not None:
        layout = zip(basis.layout.names, basis.layout.shapes, strict=True)
        for (name, shape), parameter in zip(layout, trainable, strict=False):
            if name != parameter.name or tuple(shape) != tuple(parameter.shape):
                raise BasisMismatchError(
                    f"the basis was fitted on {name} {tuple(shape)} where the network has {parameter.name} "
                    f"{tuple(parameter.shape)}; fit it on snapshots of this network"
                )
    return np.ascontiguousarray(components[:n_components], dtype=np.float32)


def _decay_of_each_weight(weight_decay: float | Sequence[float], trainable: Sequence[ms.Parameter]) -> Tensor | None:
    """The decay of each weight, (M,) float32, or None where there is none."""
    decays = [float(weight_decay)] * len(trainable) if isinstance(weight_decay, int | float) else list(weight_decay)
    if len(decays) != len(trainable):
        raise ConfigError(f"weight_decay has {len(decays)} numbers, the network {len(trainable)} trainable parameters")
    if any(not 0 <= decay < 1 for decay in decays):
        raise ConfigError(f"weight_decay is {weight_decay}; it must be at least 0 and below 1")
    if not any(decays):
        return None
    return Tensor(np.repeat(np.float32(decays), [parameter.size for parameter in trainable]))
