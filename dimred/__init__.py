"""Two-stage dimension-reduction training on MindSpore.

The public names are loaded on first use, so that ``import dimred`` and ``dimred --help`` don't load MindSpore.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dimred.runtime.onednn import cap_instruction_set

cap_instruction_set()

if TYPE_CHECKING:
    from dimred.search.cell import SubspaceTrainStep
    from dimred.subspace.basis import SubspaceBasis, load_basis
    from dimred.subspace.pca import fit_basis
    from dimred.train_step.step import TrainStep
    from dimred.weights.layout import WeightLayout
    from dimred.weights.series import CheckpointSeries

__version__ = "0.1.0"

__all__ = [
    "CheckpointSeries",
    "SubspaceBasis",
    "SubspaceTrainStep",
    "TrainStep",
    "WeightLayout",
    "fit_basis",
    "load_basis",
]

_HOME = {
    "CheckpointSeries": "dimred.weights.series",
    "SubspaceBasis": "dimred.subspace.basis",
    "SubspaceTrainStep": "dimred.search.cell",
    "TrainStep": "dimred.train_step.step",
    "WeightLayout": "dimred.weights.layout",
    "fit_basis": "dimred.subspace.pca",
    "load_basis": "dimred.subspace.basis",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dimred' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
