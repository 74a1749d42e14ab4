"""Two-stage dimension-reduction training on MindSpore.

The oneDNN 3.10.1 inside MindSpore 2.10 falls back to its *reference* kernel for every convolution larger than 1 x 1 on
AVX-512 hosts: 20 to 100 times slower than the AVX2 kernel (``tests/benchmarks/test_onednn_cap.py`` measures the ratio).
So on such hosts, importing ``dimred`` caps oneDNN's instruction set at AVX2, unless the user's environment sets it. It
also keeps two things out of a user's way: the folder that MindSpore makes in the working directory for a graph that
doesn't compile, and what MindSpore's cells print at exit.

The public names are loaded on first use, so that ``import dimred`` and ``dimred --help`` don't load MindSpore.
"""

import atexit
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dimred.errors import missing_package

if TYPE_CHECKING:
    from dimred.checkpoints.layout import WeightLayout as WeightLayout
    from dimred.checkpoints.series import CheckpointSeries as CheckpointSeries
    from dimred.comparison.compare import compare as compare
    from dimred.evaluation.averages import choose_start as choose_start
    from dimred.evaluation.batch_norm import reestimate_batch_norm as reestimate_batch_norm
    from dimred.merging.merge import merge as merge
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
    "choose_start": "dimred.evaluation.averages",
    "compare": "dimred.comparison.compare",
    "fit_basis": "dimred.subspace.fit",
    "load_basis": "dimred.subspace.basis",
    "merge": "dimred.merging.merge",
    "reestimate_batch_norm": "dimred.evaluation.batch_norm",
    "with_precision": "dimred.train_step.precision",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dimred' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        raise missing from error


def __dir__() -> list[str]:
    return [*__all__, "__version__", "__doc__"]


ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"


def has_avx512() -> bool:
    """Return whether this host's processor offers AVX-512; False if that can't be read."""
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return False


def _silence_cell_finalisers() -> None:
    """Silence ``Cell.__del__``, which meets missing globals at exit and would print a traceback for each cell."""
    if "mindspore" in sys.modules:
        sys.modules["mindspore"].nn.Cell.__del__ = lambda self: None


if "DNNL_MAX_CPU_ISA" not in os.environ and has_avx512():  # the variable's old name; the user's choice counts
    os.environ.setdefault(ISA_VARIABLE, "AVX2")  # oneDNN reads it at its first primitive
os.environ.setdefault("MS_OM_PATH", str(Path(tempfile.gettempdir(), f"dimred-{os.getuid()}")))  # else ./rank_0/om
atexit.register(_silence_cell_finalisers)
