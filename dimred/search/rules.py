"""Which way and how far, by the names users type."""

from collections.abc import Callable
from typing import Protocol

from dimred.errors import ConfigError
from dimred.search.bfgs import InverseBFGS
from dimred.search.direction import DirectionRule
from dimred.search.line_search import ArmijoBacktracking, FixedStep, LineSearchResult
from dimred.search.projected_sgd import LearningRate, ProjectedSGD

SEARCHES = ("bfgs", "sgd", "average")


class LineSearch(Protocol):
    """How far along a direction."""

    def search(self, loss_at: Callable[[float], float], loss: float, slope: float) -> LineSearchResult:
        """See ``ArmijoBacktracking.search``."""


def make_rules(
    search: str,
    n_components: int,
    *,
    rho: float,
    sigma: float,
    max_trials: int,
    curvature_pair: str,
    damping: bool,
    initial_scaling: bool,
    learning_rate: LearningRate,
    momentum: float,
) -> tuple[DirectionRule, LineSearch]:
    """The direction rule and the line search that ``search`` names.

    Every option is checked, also those that this search does not use.

    Raises:
        ConfigError: an unknown name, or an option outside its range.
    """
    if search not in SEARCHES:
        raise ConfigError(f"search is {search!r}; allowed: {', '.join(SEARCHES)}")
    quasi_newton = InverseBFGS(n_components, curvature_pair, damping, initial_scaling)
    armijo = ArmijoBacktracking(rho, sigma, max_trials)
    projected_sgd = ProjectedSGD(n_components, learning_rate, momentum)
    if search == "bfgs":
        return quasi_newton, armijo
    return projected_sgd, FixedStep()
