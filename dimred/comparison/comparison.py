"""``Comparison``: one stage 1 at one epoch, the trainings that start there, and how their networks are measured."""

import logging
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dimred.averaging.choice import in_words
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.comparison.runs import checkpoint_of, on_one_process, run_stage
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.launch.device import Target
from dimred.report.run_record import read_stage_1
from dimred.run_files.run_names import RESULT, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.task import build_task
from dimred.vectors.parameters import from_arrays

_log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
STAGE_2 = "stage_2"  # folder and row for stage 2 as configured


class MethodResult(NamedTuple):
    """A method's result.

    Attributes:
        network: path of a checkpoint with parameters and statistics.
        passes: the cost of the training that led to it, stage 1 included, in epochs of ordinary training. An epoch is a
            forward and a backward pass; a forward pass for a choice counts a third. Whole training runs that ``val``
            did not choose are not counted.
        seconds: wall seconds that the method took, without stage 1; they include choices, and training runs that were
            not chosen or diverged.
        chosen: what ``val`` chose, in words; empty if there was nothing to choose.
        choice: the rate that ``val`` chose, if other seeds are to use it too.
        diverged: the rates at which training diverged, in words; empty if there were none.
    """

    network: str
    passes: float
    seconds: float = 0.0
    chosen: str = ""
    choice: float | None = None
    diverged: str = ""


class Comparison:
    """One stage 1, treated as if it had ended at a given epoch, for the methods that are compared.

    One process continues a stage 1 that ran on several ranks, with their batches as micro-batches.

    Args:
        data: folder with train/, val/ and test/.
        run: the stage 1 folder.
        config_1: stage 1's configuration.
        config_2: stage 2's configuration; its network and loss must be stage 1's. Stage 1's seed replaces its seed.
        at: the epoch.
        folder: folder for the rows and runs.
        n_ranks: how many ranks trained stage 1.
        device_target: the kind of device that training runs compute on.

    Attributes:
        passes_of_stage_1: what stage 1 cost until that epoch, counted as in ``MethodResult.passes``.
        checkpoint: its full checkpoint after that epoch.
        measure: path of a checkpoint -> its figures on ``val`` and ``test``, as in a row; each is measured once.
        network, evaluator, metrics: see ``Task``.

    Raises:
        ConfigError: stage 1 has no full checkpoint for that epoch.
    """

    def __init__(
        self,
        data: Path,
        run: Path,
        config_1: StageOneConfig,
        config_2: StageTwoConfig,
        at: int,
        folder: Path,
        n_ranks: int,
        device_target: Target = "CPU",
    ):
        self.data = data
        self.run = run
        self.at = at
        self.folder = folder
        self._device_target = device_target
        self.passes_of_stage_1 = at + read_stage_1(run / STAGE_1_CHECKPOINTS).stopping_passes(at)
        self.checkpoint = checkpoint_of(run, at)
        options = {"data": config_2.data, "metric": config_2.metric, "reestimate_batches": config_2.reestimate_batches}
        task = build_task(config_1.model_copy(update=options), data, splits=SPLITS)
        if n_ranks > 1:
            _log.info(f"{run} was trained on {n_ranks} devices; here one process takes their batches one after another")
        self.config_1 = config_1.model_copy(update=on_one_process(config_1, n_ranks))
        config_2 = config_2.with_epochs_after(at).model_copy(update={"seed": config_1.seed})
        self.config_2 = config_2.model_copy(update=on_one_process(config_2, n_ranks))
        self.network = task.network
        self.evaluator = task.evaluator
        self.metrics = task.metrics
        self.measure = cache(self._measure)

    def _measure(self, network: str) -> dict[str, Any]:
        """Measure a file on ``val`` and ``test``: its metrics, then metrics and loss with BatchNorm re-estimated."""
        from_arrays(self.network.get_parameters(), read_checkpoint(Path(network)), network)
        figures: dict[str, list[float]] = {split: self.evaluator.metrics(split) for split in SPLITS[1:]}
        self.evaluator.reestimate()
        means = dict[str, float]()
        for split in SPLITS[1:]:
            losses, figures[f"{split}_reestimated"] = self.evaluator.losses_and_metrics(split)
            means[f"{split}_loss"] = float(losses.mean())
        main, *others = ({name: values[n] for name, values in figures.items()} for n in range(len(self.metrics)))
        names = [metric.name for metric in self.metrics[1:]]
        return main | means | {"other_metrics": dict(zip(names, others, strict=True))}

    def run_stage_1(self, name: str, changes: dict[str, Any], total: int, options: Sequence[str] = ()) -> MethodResult:
        """Train to epoch ``total`` with changed options, without snapshots, and without evaluation before the end."""
        updates = changes | {"epochs": total, "stop": None, "evaluate_every_epochs": total}
        none = {"first_epoch": total + 1, "content": "point"}
        updates["snapshots"] = self.config_1.snapshots.model_copy(update=none)
        self._run("stage_1", name, self.config_1.model_copy(update=updates), options)
        checkpoints = self.folder / name / STAGE_1_CHECKPOINTS
        seconds = read_stage_1(checkpoints).seconds_until(total)
        return MethodResult(str(checkpoint_of(checkpoints.parent, total)), total, seconds)

    def run_stage_2(self, name: str, config: StageTwoConfig) -> MethodResult:
        """Run a stage 2 from the checkpoint."""
        self._run("stage_2", name, config, [str(self.checkpoint)])
        result = self.result_of(name)
        network = next((self.folder / name / STAGE_2_CHECKPOINTS).glob("*-final.ckpt"))
        passes = self.passes_of_stage_1 + result.passes
        chosen = "" if result.kept is None else in_words(result.kept)
        return MethodResult(str(network), passes, result.seconds, chosen)

    def _run(self, program: str, name: str, config: StageOneConfig | StageTwoConfig, options: Sequence[str]) -> None:
        title = f"seed {self.config_1.seed}, epoch {self.at}: {name}"
        options = [*options, f"--device-target={self._device_target}"]
        run_stage(program, self.data, self.folder / name, config, options, title)

    def result_of(self, name: str) -> StageTwoResult:
        """Read the ``result.json`` of a stage 2 that this comparison ran."""
        return StageTwoResult.read(self.folder / name / RESULT)

    @property
    def total_passes(self) -> int:
        """Return the passes that both stages took, choices included, rounded up."""
        return math.ceil(self.passes_of_stage_1 + self.result_of(STAGE_2).passes - 1e-9)
