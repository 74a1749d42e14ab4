"""The options of the search in the subspace: each with its default, range and meaning, once."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from dimred.config.base import Count, Fraction, NotNegative, OpenFraction, Positive, Strict

N_COMPONENTS = 32  # directions, where they are searched and no other number is given

Rates = Annotated[tuple[NotNegative, ...], Field(min_length=1)]


class SearchOptions(Strict):
    """The options of ``SubspaceTrainStep``; stage 2's configuration has the same ones."""

    search: Literal["bfgs", "sgd", "average"] = "bfgs"
    """bfgs; sgd: momentum in the subspace, no line search; average: the same on a basis of raw snapshots."""
    n_components: Annotated[int, Field(ge=0)] | None = None
    """Leading directions to search in; all of the basis by default, 0 only with residual continued."""
    rho: OpenFraction = 0.55
    """Line search: what the step is multiplied with from one trial to the next."""
    sigma: OpenFraction = 0.4
    """Line search: share of the expected decrease that a trial must reach."""
    max_trials: Count = 10
    """Line search: trials before the step is given up."""
    max_rejected_steps: Count = 100
    """Steps in a row without an accepted trial, after which the search ends."""
    residual: Literal["off", "published", "continued"] = "published"
    """The step along what the subspace can't express of the gradient: off; published: gamma and alpha, both constant;
    continued: stage 1's own optimizer."""
    gamma: Fraction = 0.9
    """Momentum of the published residual step."""
    alpha: NotNegative = 0.001
    """Step size of the published residual step; 0 turns it off."""
    curvature_pair: Literal["consecutive", "same_batch"] = "consecutive"
    """Curvature from gradients of two batches in a row, or of the same batch twice (one more gradient a step)."""
    damping: bool = False
    """Powell's damping of the curvature pair."""
    initial_scaling: bool = False
    """Start the inverse Hessian at y's / y'y times the identity, not at the identity."""
    max_step: Positive | Literal["trajectory"] | None = None
    """Longest step: a distance; trajectory for the snapshots' own spread; null for no bound."""
    learning_rate: Positive | Rates | Callable[[int], float] = 0.1
    """Learning rate of sgd and average: a number, one for each accepted step (the last one stays), or a function of the
    number of accepted steps so far."""
    momentum: Fraction = 0.9
    """Momentum of sgd and average."""
    weight_decay: Fraction | tuple[Fraction, ...] = 0.0
    """Weight decay with each accepted step: a number, or one for each trainable parameter."""

    @field_validator("*", mode="before")
    @classmethod
    def _without_numpy(cls, value: Any) -> Any:
        """NumPy's numbers and arrays, and lists, as plain numbers and tuples."""
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        return tuple(value) if isinstance(value, list) else value

    @field_validator("residual", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        """YAML reads a bare ``off`` as false."""
        return "off" if value is False else value

    @model_validator(mode="after")
    def _residual_fits(self) -> "SearchOptions":
        if self.n_components == 0 and self.residual != "continued":
            raise ValueError(
                "n_components is 0, so nothing is searched; it goes with residual continued, as a plain cooldown, but "
                f"residual is {self.residual!r}; change one of them, such as n_components=32"
            )
        if self.n_components == 0 and self.search != "bfgs":
            raise ValueError(
                f"search is {self.search!r}, but n_components is 0, so nothing is searched; set n_components, such as "
                "n_components=32"
            )
        if self.residual == "continued" and np.any(self.weight_decay):
            raise ValueError(
                "weight_decay is given, but residual continued decays by the groups of its own optimizer; set it to 0"
            )
        return self

    @property
    def leaves_subspace(self) -> bool:
        """Whether a residual step or weight decay moves the weights out of start + span(P)."""
        published = self.residual == "published" and self.alpha > 0
        return published or self.residual == "continued" or bool(np.any(self.weight_decay))
