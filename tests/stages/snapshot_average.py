"""A method of stage 2 that dimred does not have: the mean of stage 1's newest snapshots, with nothing trained.

A user's own method is this one file: its section of the configuration, its plan, its hooks, and a sentence for the
report. ``dimred train stage-2 --set method=tests.stages.snapshot_average:average`` runs it.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from mindspore import nn

from dimred.averaging.windows import Window
from dimred.config import MethodConfig
from dimred.config.base import Count
from dimred.errors import SeriesError
from dimred.evaluation.averages import SnapshotAverages
from dimred.report.method_report import MethodReport
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.begun import Pin
from dimred.stages.method import Method, Plan
from dimred.stages.parent import StageOneRun
from dimred.vectors.parameters import from_arrays, to_arrays


class AverageConfig(MethodConfig):
    """The mean of stage 1's newest snapshots, with BatchNorm re-estimated."""

    plan: ClassVar[str] = f"{__name__}:AveragePlan"
    report: ClassVar[str] = f"{__name__}:AverageReport"
    default_epochs: ClassVar[int | str] = 0

    newest: Count = 2
    """Number of the newest snapshots to average."""


average = AverageConfig  # the name of the section


class AveragePlan(Plan[AverageConfig]):
    """The plan of an average: there must be enough snapshots."""

    vectors_in_state: ClassVar[int] = 0

    def check_parent(self, parent: StageOneRun) -> None:
        """Check the number of snapshots."""
        n_snapshots = len(parent.snapshots())
        if n_snapshots < self.section.newest:
            raise SeriesError(f"average.newest is {self.section.newest}, but stage 1 kept {n_snapshots} snapshots")

    def build(self, run, task, parent, files):
        """Open the snapshots on rank 0."""
        return AverageMethod(run, parent, self.section.newest)


class AverageMethod(Method):
    """The hooks of an average: the network to keep is made at the end."""

    def __init__(self, run, parent: StageOneRun, newest: int) -> None:
        super().__init__(run, NoStep(run.task.network))
        self._series = run.ranks.run_on_rank_zero(parent.snapshots)
        self._newest = newest

    def pins(self) -> dict[str, Pin]:
        """Return the pin of the snapshots, which a resume needs, too."""
        if self._series is None:
            return {}
        digests = "".join(entry.digest for entry in self._series.entries[-self._newest :])
        return {"SNAPSHOTS": Pin(hashlib.sha256(digests.encode()).hexdigest(), str(self._series.directory))}

    def finish(self, result: StageTwoResult) -> None:
        """Put the mean into the network; StageTwo measures it with re-estimated statistics, and keeps these."""
        evaluator = self.run.evaluator
        averages = SnapshotAverages(self._series, evaluator.layout, self.run.ranks)
        n_snapshots = len(averages.steps)
        mean = averages.of(Window(n_snapshots - self._newest, n_snapshots))
        from_arrays(evaluator.network.trainable_params(), evaluator.layout.unflatten(mean), "the average")


class NoStep(nn.Cell):
    """The step of a method that trains nothing; it has the network's state, and is never called."""

    parts = ()
    ema = None
    ballot = None

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = nn.Cell()
        self.optimizer.parameters = ()

    def state(self) -> dict[str, np.ndarray]:
        """Return the network's parameters."""
        return to_arrays(self.network.get_parameters())

    def restore(self, arrays: Mapping[str, np.ndarray], source: str) -> None:
        """Restore the network's parameters."""
        from_arrays(self.network.get_parameters(), arrays, source)


class AverageReport(MethodReport):
    """The report of an average."""

    def sentences(self) -> list[str]:
        """Say how many snapshots were averaged."""
        section: Any = self.config.method_config
        return [f"The network is the mean of the newest {section.newest} snapshots of stage 1."]
