"""What the search remembers between steps."""

from typing import Any, NamedTuple

from mindspore import Tensor


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
