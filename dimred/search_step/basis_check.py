"""Check that a basis belongs to a network."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from mindspore import Parameter

from dimred.errors import BasisMismatchError, ConfigError


class Basis(Protocol):
    """The attributes of a basis that the search needs.

    Attributes:
        components: orthonormal rows (k, M) float32; may be memory-mapped.
        layout: which weights the columns stand for, in order (``names``, ``shapes``); None where that is not known.
    """

    @property
    def components(self) -> np.ndarray: ...
    @property
    def layout(self) -> Any: ...


def leading_components(basis: Basis, trainable: Sequence[Parameter], n_components: int | None) -> np.ndarray:
    """Check that the columns of a basis stand for these parameters, and return its leading rows.

    Returns:
        (k, M) float32; a view of ``basis.components`` wherever that is float32 and contiguous.

    Raises:
        ConfigError: more components than the basis has, or it is none.
        BasisMismatchError: names the first column that stands for something else.
    """
    n_weights = sum(parameter.size for parameter in trainable)
    components = getattr(basis, "components", None)
    if not isinstance(components, np.ndarray):
        raise ConfigError(
            f"basis is {type(basis).__name__}; give what dimred.fit_basis or load_basis made, or its path"
        )
    if components.ndim != 2 or components.shape[1] != n_weights or len(components) == 0:
        raise BasisMismatchError(
            f"the basis has the shape {components.shape}, but the network has {n_weights} trainable weights; fit it on "
            "snapshots of this network, with the same parameters frozen"
        )
    if n_components is not None and n_components > len(components):
        raise ConfigError(
            f"n_components is {n_components}; the basis has {len(components)}, so 1 to {len(components)} are allowed"
        )
    places = zip(basis.layout.names, basis.layout.shapes, trainable, strict=False) if basis.layout is not None else ()
    for name, shape, parameter in places:
        if name != parameter.name or tuple(shape) != tuple(parameter.shape):
            raise BasisMismatchError(
                f"the basis was fitted on {name} {tuple(shape)} where the network has {parameter.name} "
                f"{tuple(parameter.shape)}; fit it on snapshots of this network"
            )
    return np.ascontiguousarray(components[:n_components], dtype=np.float32)
