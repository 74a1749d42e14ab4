"""``SubspaceTrainStep``: the step of a search, made from checked options."""

import os
from typing import Any

import numpy as np
from mindspore import nn

from dimred.checkpoints.layout import WeightLayout
from dimred.config import SearchOptions
from dimred.errors import ConfigError
from dimred.search_step.direction import Direction, InverseBFGS, ProjectedSGD
from dimred.search_step.line_search import ArmijoBacktracking, FixedStep, LineSearch
from dimred.search_step.moves import MoveOutside, ResidualMomentum
from dimred.search_step.search_step import SearchStep
from dimred.subspace.basis import SubspaceBasis, load_basis

# Arguments that are not options of the search.
_OF_STEP = ("loss_scale", "clipping", "ema", "parts", "micro_batch_size", "ranks")


class SubspaceTrainStep(SearchStep):
    """A training step that searches in the subspace of a basis: a ``SearchStep`` made from checked options.

    The rule ``bfgs`` is ``InverseBFGS`` with ``ArmijoBacktracking``, and ``sgd`` is ``ProjectedSGD`` with
    ``FixedStep``; give ``SearchStep`` a direction or a line search of your own. Called with the inputs of ``network``,
    the step returns a ``SearchResult``; see ``SearchStep`` for the errors of a call.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch, or (sum, count), see
            ``TrainStep``.
        basis: a ``SubspaceBasis`` of the network's trainable weights, or the path of one.
        optimizer: none; a search adds its update as it is.
        options: rule, n_components, rho, gamma, alpha, sigma, max_trials, initial_scaling, min_cosine, learning_rate,
            momentum, max_rejected_steps, see ``SearchOptions``; and loss_scale, clipping, ema, parts,
            micro_batch_size, ranks, see ``SearchStep``.

    Raises:
        ConfigError: an option is unknown, outside its range, or does not go with the others; or an optimizer is given.
        BasisMismatchError: the basis does not fit the network's trainable weights.
    """

    def __init__(
        self, network: nn.Cell, basis: SubspaceBasis | str | os.PathLike[str], optimizer: None = None, **options: Any
    ):
        if optimizer is not None or isinstance(basis, nn.Optimizer):
            raise ConfigError(
                "optimizer is given, but a search applies its steps by itself. The SGD(learning_rate=1) of boost's "
                "tutorial adds the update as it is, and so does this step: leave optimizer out"
            )
        of_step = {name: options.pop(name) for name in _OF_STEP if name in options}
        search = SearchOptions.checked(options, exact=True, other_keys=_OF_STEP)
        if isinstance(basis, str | os.PathLike):
            basis = load_basis(basis, network=network)
        if not isinstance(basis, SubspaceBasis):
            raise ConfigError(
                f"basis is {type(basis).__name__}; give the result of dimred.fit_basis or load_basis, or its path"
            )
        basis.check(WeightLayout.from_network(network))
        k, n_components = basis.n_components, search.n_components
        if n_components is not None and n_components > k:
            raise ConfigError(f"n_components is {n_components}; the basis has {k}, so 1 to {k} are allowed")
        rows = np.ascontiguousarray(basis.components[:n_components], dtype=np.float32)  # a view wherever it can be
        direction, line_search = build_rule(search, len(rows))
        outside: MoveOutside | None = ResidualMomentum(search.gamma, search.alpha) if search.alpha > 0 else None
        of_step["max_rejected_steps"] = search.max_rejected_steps
        super().__init__(network, rows, direction, line_search, outside, **of_step)


def build_rule(options: SearchOptions, n_components: int) -> tuple[Direction, LineSearch]:
    """Build the direction and the line search that ``rule`` stands for, in k = ``n_components`` directions."""
    if options.rule == "sgd":
        return ProjectedSGD(n_components, options.learning_rate, options.momentum), FixedStep()
    direction = InverseBFGS(n_components, options.initial_scaling, options.min_cosine)
    return direction, ArmijoBacktracking(options.rho, options.sigma, options.max_trials)
