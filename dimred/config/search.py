"""The options of a search in the subspace, and the section ``search`` of stage 2's configuration."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field, field_validator, model_validator

from dimred.config.base import Count, Fraction, NotNegative, OpenFraction, Positive, Strict
from dimred.config.methods import MethodConfig

N_COMPONENTS = 32  # directions to search in, unless a number is given

_Rates = Annotated[tuple[NotNegative, ...], Field(min_length=1)]
N_COMPONENTS_NAMES = ("n_components", "n_component")  # the second is the published recipe's
BOOST_OPTIONS = ("rho", "gamma", "alpha", "sigma", *N_COMPONENTS_NAMES)  # of boost's ``dim_reduce``
_N_COMPONENTS = AliasChoices(*N_COMPONENTS_NAMES)
_OF_RULE = {
    "bfgs": ("rho", "sigma", "max_trials", "initial_scaling", "min_cosine"),
    "sgd": ("learning_rate", "momentum", "learning_rate_schedule"),
}


class SearchOptions(Strict):
    """The options of ``SubspaceTrainStep``; the section ``search`` of stage 2 has these and more."""

    NEW_KEYS: ClassVar[dict[str, str]] = {
        "pca_mat_path": "give the argument basis",
        "weight_load_dir": "make the basis by dimred.fit_basis",
        "timeout": "leave it out; dimred train has --stall-timeout",
        "boost_level": "leave it out",
        "boost": "leave it out",
        "device_num": "give the argument ranks",
        "device_number": "give the argument ranks",
    }
    """Options of mindspore.boost's ``dim_reduce`` -> what to do instead."""

    rule: Literal["bfgs", "sgd"] = "bfgs"
    """bfgs: a quasi-Newton direction and a line search; sgd: momentum in the subspace, no line search."""
    n_components: Annotated[Count | None, Field(validation_alias=_N_COMPONENTS)] = None
    """How many of the basis's leading directions to search in; all by default."""
    rho: OpenFraction = 0.55
    """Line search: factor by which the step shrinks from one trial to the next."""
    sigma: OpenFraction = 0.4
    """Line search: fraction of the expected decrease that a trial must reach."""
    max_trials: Count = 10
    """Line search: the most trials in a step; if all fail, the step does not move inside the subspace. There is no cap
    until bfgs has used a first pair (see min_cosine), because the gradient alone does not say how far to go."""
    initial_scaling: bool = False
    """Whether bfgs scales its first inverse Hessian H = I by s'y / y'y, where s is its first step and y the gradient's
    change, so that the first directions have about the right length."""
    min_cosine: Fraction = 0.01
    """bfgs uses a pair, a step s and the gradient's change y, if s'y > min_cosine |s| |y|. A higher value leaves out
    more noisy pairs; 1e-8 is for gradients without noise, all from one batch."""
    max_rejected_steps: Count = 100
    """The search ends after this many steps in a row without an accepted trial."""
    gamma: Fraction = 0.9
    """Momentum of the step outside the subspace."""
    alpha: NotNegative = 0.001
    """Size of the step outside the subspace; 0 for none."""
    learning_rate: Positive | _Rates | Callable[[int], float] = 0.1
    """Learning rate of sgd: a number, a list with one for each accepted step (the last one stays), or a function of the
    number of accepted steps so far."""
    momentum: Fraction = 0.9
    """Momentum of sgd."""

    @field_validator("*", mode="before")
    @classmethod
    def _without_numpy(cls, value: Any) -> Any:
        """Turn NumPy's numbers and arrays, and lists, into plain numbers and tuples."""
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> "SearchOptions":
        """Refuse an option of the other rule that is not at its default, because it would have no effect."""
        for rule, names in _OF_RULE.items():
            for name in names if rule != self.rule else ():
                field = type(self).model_fields.get(name)
                if field is not None and getattr(self, name) != field.default:
                    raise ValueError(
                        f"{name} is an option of the rule {rule}, but rule is {self.rule}; leave it out, "
                        f"or leave it at its default, {field.default}"
                    )
        return self


class SearchConfig(SearchOptions, MethodConfig):
    """A search in the directions of stage 1's snapshots, by default with a quasi-Newton rule and a line search."""

    plan: ClassVar[str] = "dimred.stages.search:SearchPlan"
    report: ClassVar[str] = "dimred.report.search_report:SearchReport"
    default_epochs: ClassVar[int | str] = 2
    first_keys: ClassVar[tuple[str, ...]] = ("n_components",)

    n_components: Annotated[Count, Field(validation_alias=_N_COMPONENTS)] = N_COMPONENTS
    """Number of leading directions to search in; a basis fitted for the search has as many."""
    basis: Literal["pca", "snapshots"] = "pca"
    """The basis that is fitted if PCA_MAT is not given: principal directions, or the raw snapshots orthonormalised."""
    learning_rate: Positive = 0.1
    """Learning rate of sgd."""
    learning_rate_schedule: Literal["linear", "constant"] = "linear"
    """How the rate of sgd changes: it falls linearly to 0 at the end, or is constant."""

    @property
    def needs_exact_float32(self) -> bool:
        """Return True: a search compares losses."""
        return True

    @property
    def fixed_keys(self) -> frozenset[str]:
        """Return ``epochs`` if the rate of sgd falls to 0 by the last one: with more epochs it would rise again."""
        falls_to_zero = self.rule == "sgd" and self.learning_rate_schedule == "linear"
        return frozenset({"epochs"}) if falls_to_zero else frozenset()
