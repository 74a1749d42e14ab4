"""Whether a basis belongs to a network."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from mindspore import Parameter

from dimred.errors import BasisMismatchError, ConfigError


class Basis(Protocol):
    """What the search asks of a basis.

    Attributes:
        components: orthonormal rows (k, M) float32; may be memory-mapped.
        layout: which weights the columns stand for, in order (``names``, ``shapes``); None where that is not known.
        explained_variance: variance of the snapshots along each row, (k,); None where that is not known. Asked for only
            by ``max_step="trajectory"``.
    """

    @property
    def components(self) -> np.ndarray: ...
    @property
    def layout(self) -> Any: ...
    @property
    def explained_variance(self) -> np.ndarray | None: ...


class RandomBasis(NamedTuple):
    """Random orthonormal rows (k, M) in the place of a fitted basis: the control of whether its directions matter."""

    components: np.ndarray
    explained_variance: np.ndarray | None
    layout: None = None

    def __repr__(self) -> str:
        """In one line."""
        return "RandomBasis({} directions of {:,} weights)".format(*self.components.shape)

    @classmethod
    def like(cls, basis: Basis, seed: int) -> "RandomBasis":
        """As many rows as ``basis`` has, and the bound that ``max_step="trajectory"`` has there."""
        gaussian = np.random.default_rng(seed).standard_normal(basis.components.shape, np.float32)
        columns, _ = np.linalg.qr(gaussian.T)
        return cls(np.ascontiguousarray(columns.T), basis.explained_variance)


def leading_components(basis: Basis | None, trainable: Sequence[Parameter], n_components: int | None) -> np.ndarray:
    """The leading rows of the basis, (k, M) float32, after checking that the columns stand for these parameters.

    A view of ``basis.components`` wherever that is float32 and contiguous. None of no components needs no basis.

    Raises:
        ConfigError: more components than the basis has, or no basis.
        BasisMismatchError: names the first column that stands for something else.
    """
    n_weights = sum(parameter.size for parameter in trainable)
    if basis is None:
        if n_components != 0:
            raise ConfigError("basis is None, which goes with n_components=0 only; fit one with dimred.fit_basis")
        return np.zeros((0, n_weights), np.float32)
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
