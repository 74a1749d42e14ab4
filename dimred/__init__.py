"""Two-stage dimension-reduction training on MindSpore.

Importing ``dimred`` sets environment variables that MindSpore reads when it loads, unless the user has set them; see
``dimred.workarounds.onednn_cap`` and ``dimred.workarounds.litter``.

The public names are loaded on first use, so that ``import dimred`` and ``dimred --help`` don't load MindSpore.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dimred.errors import missing_package
from dimred.workarounds.litter import avoid_litter
from dimred.workarounds.onednn_cap import cap_onednn

if TYPE_CHECKING:
    from dimred.checkpoints.layout import WeightLayout as WeightLayout
    from dimred.checkpoints.series import CheckpointSeries as CheckpointSeries
    from dimred.comparison.compare import compare as compare
    from dimred.evaluation.batch_norm import reestimate_batch_norm as reestimate_batch_norm
    from dimred.merging.merge import merge as merge
    from dimred.runs.use_gpu import use_gpu as use_gpu
    from dimred.stages.snapshot_callback import SnapshotCallback as SnapshotCallback
    from dimred.stages.subspace_train_step import SubspaceTrainStep as SubspaceTrainStep
    from dimred.subspace.basis import SubspaceBasis as SubspaceBasis
    from dimred.subspace.basis import load_basis as load_basis
    from dimred.subspace.fit import fit_basis as fit_basis
    from dimred.train_step.adamw import AdamW as AdamW
    from dimred.train_step.clipping import Clipping as Clipping
    from dimred.train_step.ema import EMA as EMA
    from dimred.train_step.loss_scale import DynamicLossScale as DynamicLossScale
    from dimred.train_step.loss_scale import StaticLossScale as StaticLossScale
    from dimred.train_step.precision import with_precision as with_precision
    from dimred.train_step.schedule_free import ScheduleFree as ScheduleFree
    from dimred.train_step.step import TrainStep as TrainStep

if sys.platform == "win32":
    raise ImportError("dimred runs on Linux and macOS; on Windows, install WSL (wsl --install) and dimred inside it")

__version__ = "0.1.0"

_HOME = {
    "AdamW": "dimred.train_step.adamw",
    "CheckpointSeries": "dimred.checkpoints.series",
    "Clipping": "dimred.train_step.clipping",
    "DynamicLossScale": "dimred.train_step.loss_scale",
    "EMA": "dimred.train_step.ema",
    "ScheduleFree": "dimred.train_step.schedule_free",
    "SnapshotCallback": "dimred.stages.snapshot_callback",
    "StaticLossScale": "dimred.train_step.loss_scale",
    "SubspaceBasis": "dimred.subspace.basis",
    "SubspaceTrainStep": "dimred.stages.subspace_train_step",
    "TrainStep": "dimred.train_step.step",
    "WeightLayout": "dimred.checkpoints.layout",
    "compare": "dimred.comparison.compare",
    "fit_basis": "dimred.subspace.fit",
    "load_basis": "dimred.subspace.basis",
    "merge": "dimred.merging.merge",
    "reestimate_batch_norm": "dimred.evaluation.batch_norm",
    "use_gpu": "dimred.runs.use_gpu",
    "with_precision": "dimred.train_step.precision",
}
__all__ = [  # written out, because type checkers read it and run nothing
    "EMA",
    "AdamW",
    "CheckpointSeries",
    "Clipping",
    "DynamicLossScale",
    "ScheduleFree",
    "SnapshotCallback",
    "StaticLossScale",
    "SubspaceBasis",
    "SubspaceTrainStep",
    "TrainStep",
    "WeightLayout",
    "compare",
    "fit_basis",
    "load_basis",
    "merge",
    "reestimate_batch_norm",
    "use_gpu",
    "with_precision",
]


if not TYPE_CHECKING:  # so that type checkers report a name that is not above

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'dimred' has no attribute {name!r}")
        try:
            return getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            missing = missing_package(error)
            if missing is None:
                raise
            raise missing from error


def __dir__() -> list[str]:
    return [*__all__, "__version__", "__doc__"]


cap_onednn()
avoid_litter()
