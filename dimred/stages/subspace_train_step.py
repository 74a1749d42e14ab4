"""``SubspaceTrainStep``: a search's step, made from checked options."""

import os
from typing import Any

import numpy as np
from mindspore import nn

from dimred.checkpoints.layout import WeightLayout
from dimred.config import SearchOptions
from dimred.errors import ConfigError
from dimred.search_step.direction import Direction, InverseBFGS, ProjectedSGD
from dimred.search_step.line_search import ArmijoBacktracking, FixedStep, LineSearch
from dimred.search_step.moves import ResidualMomentum
from dimred.search_step.search_step import SearchStep
from dimred.subspace.basis import SubspaceBasis, load_basis

# Arguments that are not options of the search.
_OF_STEP = ("loss_scale", "clipping", "ema", "parts", "micro_batch_size", "ranks")


class SubspaceTrainStep(SearchStep):
    """A training step that searches in a basis's subspace: a ``SearchStep`` made from checked options.

    The rule ``bfgs`` is ``InverseBFGS`` with ``ArmijoBacktracking``, and ``sgd`` is ``ProjectedSGD`` with
    ``FixedStep``; for your own direction or line search, use ``SearchStep``. Called with ``network``'s inputs, the
    step returns a ``SearchResult``; see ``SearchStep`` for the errors that a call raises.

    Args:
        network: network and loss in one cell; returns a batch's scalar mean loss, or (sum, count); see ``TrainStep``.
        basis: a ``SubspaceBasis`` for the network's trainable weights, or its path.
        optimizer: none; a search adds its update as it is.
        options: the search's options, each with its default and its range; and loss_scale, clipping, ema, parts,
            micro_batch_size, ranks; see ``SearchStep``.

            rule ("bfgs"; "bfgs" or "sgd"): a quasi-Newton direction and a line search, or momentum in the subspace.
            n_components (all; 1 to the basis's k): how many leading directions to search in.
            rho (0.55; above 0, below 1): line search: factor by which the step shrinks from one trial to the next.
            sigma (0.4; above 0, below 1): line search: fraction of the expected decrease that a trial must reach.
            max_trials (10; at least 1): line search: the most trials in a step; there is no cap before the first pair.
            initial_scaling (False; False or True): bfgs: whether H starts as (s'y / y'y) I and not as I.
            min_cosine (0.01; at least 0, below 1): bfgs: a pair updates H if s'y > min_cosine |s| |y|; take 1e-8 if all
                gradients come from one batch.
            gamma (0.9; at least 0, below 1): momentum of the step outside the subspace.
            alpha (0.001; at least 0): size of that step; 0 for none.
            learning_rate (0.1; above 0): sgd: a number, a list for the accepted steps (at least 0), or a function of
                their number.
            momentum (0.9; at least 0, below 1): sgd: momentum in the subspace.
            max_rejected_steps (100; at least 1): after this many rejected steps in a row, the next raises an error.

    Raises:
        ConfigError: an option is unknown, outside its range, or does not fit the others; or an optimizer is given.
        BasisMismatchError: the basis does not fit the network's trainable weights.
    """

    def __init__(
        self, network: nn.Cell, basis: SubspaceBasis | str | os.PathLike[str], optimizer: None = None, **options: Any
    ):
        if optimizer is not None or isinstance(basis, nn.Optimizer):
            raise ConfigError(
                "optimizer is given, but a search applies its steps by itself. The SGD(learning_rate=1) of boost's "
                "tutorial adds the update as it is, and so does this step: leave optimizer out",
                argument="optimizer",
            )
        of_step = {name: options.pop(name) for name in _OF_STEP if name in options}
        search = SearchOptions.checked(options, exact=True, other_keys=_OF_STEP)
        basis = _fitting_basis(basis, network)
        k = basis.n_components
        n_components = search.n_components
        if n_components is not None and n_components > k:
            raise ConfigError(
                f"n_components is {n_components}; the basis has {k}, so 1 to {k} are allowed", argument="n_components"
            )
        super().__init__(network, **options_of_step(search, basis), **of_step)


def _fitting_basis(basis: SubspaceBasis | str | os.PathLike[str], network: nn.Cell) -> SubspaceBasis:
    """Load the basis if a path is given, and check that it fits the network."""
    if isinstance(basis, str | os.PathLike):
        return load_basis(basis, network=network)
    if not isinstance(basis, SubspaceBasis):
        raise ConfigError(
            f"basis is {type(basis).__name__}; give the result of dimred.fit_basis or load_basis, or its path",
            argument="basis",
        )
    basis.check(WeightLayout.from_network(network))
    return basis


def options_of_step(search: SearchOptions, basis: SubspaceBasis) -> dict[str, Any]:
    """Build the arguments of ``SearchStep`` that the search's options and the basis stand for.

    The basis fits the network, and has at least ``n_components`` rows.
    """
    rows = np.ascontiguousarray(basis.components[: search.n_components], dtype=np.float32)  # a view wherever it can be
    direction, line_search = build_rule(search, len(rows))
    return {
        "components": rows,
        "direction": direction,
        "line_search": line_search,
        "outside": ResidualMomentum(search.gamma, search.alpha) if search.alpha > 0 else None,
        "max_rejected_steps": search.max_rejected_steps,
    }


def build_rule(options: SearchOptions, n_components: int) -> tuple[Direction, LineSearch]:
    """Build the direction and the line search that ``rule`` stands for, in k = ``n_components`` directions."""
    if options.rule == "sgd":
        return ProjectedSGD(n_components, options.learning_rate, options.momentum), FixedStep()
    direction = InverseBFGS(n_components, options.initial_scaling, options.min_cosine)
    return direction, ArmijoBacktracking(options.rho, options.sigma, options.max_trials)
