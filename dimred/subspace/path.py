"""SubspacePath: every point of a search as the start plus k numbers.

Without residual momentum (alpha = 0) and weight decay the search never leaves start + span(P): w_j = start + P' z_j,
with z_j the sum of the accepted steps. So 32 numbers stand for a network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import BasisMismatchError, CheckpointError, ConfigError
from dimred.files.checksummed_json import read_checksummed, write_checksummed
from dimred.files.digest import vector_digest
from dimred.files.run_names import SUBSPACE_PATH
from dimred.subspace.basis import SubspaceBasis

_FORMAT, _VERSION = "dimred subspace path", 2
_LARGEST_FILE = 1 << 30


@dataclass(frozen=True)
class SubspacePath:
    """The positions of a search in its subspace.

    Attributes:
        coordinates: z, (n_steps + 1, k) float64; the first row is 0, the start.
        start_digest: of the start's trainable weights.
        basis_digest: of the rows of the basis; None for a bare ``.npy`` file.
    """

    coordinates: np.ndarray
    start_digest: str
    basis_digest: str | None

    @property
    def n_steps(self) -> int:
        """Steps after the start."""
        return len(self.coordinates) - 1

    def weights_at(self, step: int, start: np.ndarray, basis: SubspaceBasis) -> np.ndarray:
        """w_step = start + P' z_step, (M,) float32; equal to the searched weights to float32 rounding.

        Args:
            step: 0 (the start) to ``n_steps``.
            start: (M,) float32, the weights the search started from.
            basis: the basis it searched in.

        Raises:
            ConfigError: no such step.
            BasisMismatchError: the start or the basis is another one.
        """
        if not 0 <= step <= self.n_steps:
            raise ConfigError(f"--step is {step}; the path has the steps 0 to {self.n_steps}")
        if vector_digest([start]) != self.start_digest:
            raise BasisMismatchError("the path was searched from other weights; give the checkpoint it started from")
        if self.basis_digest != basis.digest or basis.n_components < self.coordinates.shape[1]:
            raise BasisMismatchError("the path was searched in another basis; give the pca_mat.npy it was made with")
        coordinates = np.zeros(basis.n_components)  # the search may have used the leading rows only
        coordinates[: self.coordinates.shape[1]] = self.coordinates[step]
        return np.asarray(start, np.float32) + basis.back_project(coordinates)

    def save(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "start_digest": self.start_digest,
            "basis_digest": self.basis_digest,
            "coordinates": self.coordinates.tolist(),
        }
        write_checksummed(path, content)


def make_path(steps: Sequence[np.ndarray], start: np.ndarray, basis: SubspaceBasis) -> SubspacePath:
    """The path of a search from its accepted steps t d_k, (k,) each, zeros where nothing was accepted."""
    coordinates = np.cumsum([np.zeros_like(steps[0]), *steps], axis=0)
    return SubspacePath(coordinates, vector_digest([start]), basis.digest)


def read_path(path: Path) -> SubspacePath:
    """Read a path, and check it.

    Raises:
        CheckpointError: no such file, or not a path.
    """
    try:
        return _checked(read_checksummed(path, _LARGEST_FILE))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise CheckpointError(
            f"{path} is not the path of a search ({type(error).__name__}: {str(error)[:200]}); stage 2 writes "
            f"{SUBSPACE_PATH} with alpha=0"
        ) from None


def _checked(content: dict[str, Any]) -> SubspacePath:
    if content["format"] != _FORMAT or content["version"] != _VERSION:
        raise ValueError(f"it says it is {str(content['format'])[:80]!r}")
    coordinates = np.asarray(content["coordinates"], np.float64)
    if coordinates.ndim != 2 or coordinates.size == 0 or not np.isfinite(coordinates).all():
        raise ValueError("its coordinates are not rows of finite numbers")
    basis_digest = content["basis_digest"]
    return SubspacePath(coordinates, str(content["start_digest"]), None if basis_digest is None else str(basis_digest))
