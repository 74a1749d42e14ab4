"""The options of the search in the subspace: each with its default, range and meaning, once."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AliasChoices, Field, field_validator

from dimred.config.base import Count, Fraction, NotNegative, OpenFraction, Positive, Strict

N_COMPONENTS = 32  # directions, where they are searched and no other number is given

Rates = Annotated[tuple[NotNegative, ...], Field(min_length=1)]


class SearchOptions(Strict):
    """The options of ``SubspaceTrainStep``; the section ``search`` of stage 2 has the same ones."""

    rule: Literal["bfgs", "sgd"] = "bfgs"
    """bfgs: a quasi-Newton direction and a line search; sgd: momentum in the subspace, no line search."""
    n_components: Count | None = None
    """How many of the basis' leading directions to search in; all by default."""
    rho: OpenFraction = 0.55
    """Line search: what the step is multiplied with from one trial to the next."""
    sigma: OpenFraction = 0.4
    """Line search: share of the expected decrease that a trial must reach."""
    max_trials: Count = 10
    """Line search: trials before the step is given up."""
    max_rejected_steps: Count = 100
    """Steps in a row without an accepted trial, after which the search ends."""
    gamma: Fraction = 0.9
    """Momentum of the step outside the subspace, where no optimizer makes it."""
    alpha: NotNegative = 0.001
    """Size of the step outside the subspace, where no optimizer makes it; 0 for none."""
    learning_rate: Positive | Rates | Callable[[int], float] = 0.1
    """Learning rate of sgd: a number, one for each accepted step (the last one stays), or a function of the number of
    accepted steps so far."""
    momentum: Fraction = 0.9
    """Momentum of sgd."""

    @field_validator("*", mode="before")
    @classmethod
    def _without_numpy(cls, value: Any) -> Any:
        """Turn NumPy's numbers and arrays, and lists, into plain numbers and tuples."""
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        return tuple(value) if isinstance(value, list) else value


class SearchConfig(SearchOptions):
    """Search in the directions of stage 1's snapshots, with a quasi-Newton rule and a line search."""

    n_components: Annotated[
        int, Field(ge=1, default=N_COMPONENTS, validation_alias=AliasChoices("n_components", "n_component"))
    ]
    """Leading directions to search in, and those of a basis that is fitted for the search."""
    basis: Literal["pca", "snapshots"] = "pca"
    """What is fitted where PCA_MAT is not given: principal directions, or the raw snapshots orthonormalised."""
    split: Literal["train", "val"] = "train"
    """The split that gives directions and line-search losses."""
    learning_rate: Positive = 0.1
    """Learning rate of sgd."""
    learning_rate_schedule: Literal["linear", "constant"] = "linear"
    """Of the learning rate: linear to 0 at the end, or constant."""
