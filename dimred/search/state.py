"""What the search remembers between steps."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor

_DIRECTION = "direction."


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


def state_arrays(state: SearchState) -> dict[str, np.ndarray]:
    """The state as named arrays, for a file; what is None has none."""
    arrays = {
        "n_steps": np.asarray(state.n_steps, np.int64),
        "n_rejected_in_a_row": np.asarray(state.n_rejected_in_a_row, np.int64),
    }
    if state.residual_momentum is not None:
        arrays["residual_momentum"] = state.residual_momentum.asnumpy().copy()
    fields = state.direction._asdict().items()
    return arrays | {_DIRECTION + name: np.asarray(value) for name, value in fields if value is not None}


def state_from_arrays(arrays: Mapping[str, np.ndarray], like: SearchState) -> SearchState:
    """The state that ``state_arrays`` took apart, to the last bit.

    Args:
        arrays: by the names of ``state_arrays``; others are left alone.
        like: a state of the same search, such as the one it begins with.
    """
    fields = {name: _as_before(arrays.get(_DIRECTION + name)) for name in like.direction._fields}
    momentum = arrays.get("residual_momentum")
    return SearchState(
        direction=type(like.direction)(**fields),
        residual_momentum=None if momentum is None else Tensor(momentum),
        n_steps=int(arrays["n_steps"]),
        n_rejected_in_a_row=int(arrays["n_rejected_in_a_row"]),
    )


def _as_before(value: np.ndarray | None) -> Any:
    """Arrays without dimensions were plain numbers or truth values."""
    return value.item() if value is not None and value.ndim == 0 else value
