"""The methods of a comparison; each makes a network, from the end of the same stage 1 or from the beginning."""

import logging
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dimred.averaging.choice import Choice
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.comparison.results import TITLES, read_row
from dimred.comparison.runs import DivergedRunError, checkpoint_of, on_one_process, run_stage
from dimred.config import PARTS_OF_STEP, OptimizerConfig, StageOneConfig, StageTwoConfig
from dimred.evaluation.averages import SnapshotAverages, choose_average
from dimred.io.atomic import make_folder
from dimred.io.run_names import RESULT, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS
from dimred.io.stage_two_result import FORWARD, StageTwoResult
from dimred.report.run_files import read_stage_1
from dimred.report.words import kept_in_words
from dimred.runs.task import build_task
from dimred.stages.parent import StageOneRun
from dimred.vectors.parameters import from_arrays, to_arrays

_log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
PEAK_FACTORS = (0.5, 1.0, 2.0)  # of stage 1's peak
METHODS = tuple(TITLES)
"""Names of the methods of ``Comparison``, in the order in which they are run."""
AFTER_STAGE_2 = ("cooldown", "plain_for_total", "schedule_free")  # methods that need stage 2's result


class MethodResult(NamedTuple):
    """The result of a method.

    Attributes:
        network: path of a checkpoint with parameters and statistics.
        passes: cost of the training that led to it, stage 1's included, in epochs of ordinary training, each a forward
            and a backward pass. A forward pass for a choice counts a third; whole training runs that ``val`` did not
            choose are not counted.
        seconds: wall seconds of the method, without stage 1; they include choices, and training runs that were not
            chosen or diverged.
        chosen: the choice on ``val``, in words; empty if there was nothing to choose.
        choice: the chosen rate, if other seeds are to use it too.
        diverged: the rates with which training diverged, in words; empty if there were none.
    """

    network: str
    passes: float
    seconds: float = 0.0
    chosen: str = ""
    choice: float | None = None
    diverged: str = ""


class Comparison:
    """The methods that are compared for one stage 1, which is treated as if it had ended at a given epoch.

    A stage 1 of several ranks is continued by one process, with their batches as micro-batches.

    Args:
        data: folder with train/, val/ and test/.
        run: folder of the stage 1.
        one: stage 1's configuration.
        two: stage 2's configuration; its network and loss must be stage 1's, and its seed is replaced by stage 1's.
        at: the epoch.
        folder: folder for the rows and runs.
        n_ranks: number of ranks that trained stage 1.

    Attributes:
        passes_of_stage_1: cost of stage 1 until that epoch, as ``MethodResult.passes``.
        checkpoint: its full checkpoint of that epoch.
        measure: path of a checkpoint -> its figures on ``val`` and ``test``, as a row has them; measured once for each.
        network, evaluator, metrics: see ``Task``.

    Raises:
        ConfigError: stage 1 has no full checkpoint of that epoch.
    """

    def __init__(
        self, data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig, at: int, folder: Path, n_ranks: int
    ):
        self.data, self.run, self.at, self.folder = data, run, at, folder
        self.passes_of_stage_1 = at + read_stage_1(run / STAGE_1_CHECKPOINTS).stopping_passes(at)
        self.checkpoint = checkpoint_of(run, at)
        options = {"data": two.data, "metric": two.metric, "reestimate_batches": two.reestimate_batches}
        task = build_task(one.model_copy(update=options), data, splits=SPLITS)
        if n_ranks > 1:
            _log.info(f"{run} was trained on {n_ranks} devices; here one process takes their batches one after another")
        self.one = one.model_copy(update=on_one_process(one, n_ranks))
        two = two.with_epochs_after(at).model_copy(update={"seed": one.seed})
        self.two = two.model_copy(update=on_one_process(two, n_ranks))
        self.network, self.evaluator, self.metrics = task.network, task.evaluator, task.metrics
        self.measure = cache(self._measure)

    def _measure(self, network: str) -> dict[str, Any]:
        """Measure on ``val`` and ``test``: the metrics, and metrics and loss with BatchNorm re-estimated."""
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

    def last(self) -> MethodResult:
        """Take stage 1's weights at the epoch of the comparison."""
        return MethodResult(str(self.checkpoint), self.passes_of_stage_1)

    def average(self) -> MethodResult:
        """Take the average of snapshots that ``val`` chooses, or the last weights if these are better."""
        evaluator, network = self.evaluator, self.network
        from_arrays(network.get_parameters(), read_checkpoint(self.checkpoint), "WEIGHTS")
        parent = StageOneRun.open(self.checkpoint)
        averages = SnapshotAverages(parent.snapshots() if parent.has_snapshots else None, evaluator.layout)
        choice = Choice(passes_each=evaluator.passes_each, metric=self.metrics[0])
        last = evaluator.layout.flatten(to_arrays(network.trainable_params()))
        best, weights = choose_average(averages, evaluator.measure_val_of, last, choice)
        evaluator.put(weights)
        file = self.folder / "average.ckpt"
        make_folder(self.folder)
        write_checkpoint(file, to_arrays(network.get_parameters()))
        cost = FORWARD * choice.forward_passes
        return MethodResult(str(file), self.passes_of_stage_1 + cost, choice.seconds, best.name)

    def stage_2(self) -> MethodResult:
        """Run stage 2 as it is configured."""
        return self._run_stage_2("stage_2", self.two)

    def cooldown(self) -> MethodResult:
        """Run stage 2 with a cooldown in place of its search, for as many training passes as the search took.

        Its batch size and the parts of its step, such as clipping, are those of stage 1.
        """
        search = self._result("stage_2")
        changes: dict[str, Any] = {
            "method": "cooldown",
            "epochs": math.ceil(search.training_passes(search.epochs) - 1e-9),
            "data": self.two.data.model_copy(update={"batch_size": self.one.data.batch_size}),
        }
        changes |= {key: getattr(self.one, key) for key in PARTS_OF_STEP}
        return self._run_stage_2("cooldown", self.two.model_copy(update=changes))

    def plain_for_total(self) -> MethodResult:
        """Train from the beginning with a linear schedule made for the passes of both stages, rounded up.

        ``val`` chooses the peak on the first seed that is compared at this epoch; the other seeds use it too, unless
        their training diverges with it.

        Raises:
            DivergedRunError: training diverged with every peak.
            FaultError: training failed otherwise with one of them.
        """
        total = self._total()

        def train(peak: float) -> MethodResult:
            warmup = min(self.one.schedule.warmup_epochs, total - 1)
            linear = {"name": "linear", "peak": peak, "warmup_epochs": warmup, "total_epochs": total}
            schedule = self.one.schedule.model_copy(update=linear | {"milestones": ()})
            return self._run_stage_1(f"plain_{peak:g}", {"schedule": schedule}, total)

        return self._best_training("plain_for_total", "plain training", self.one.schedule.peak, train)

    def schedule_free(self) -> MethodResult:
        """Train from the beginning with schedule-free SGD for the passes of both stages, rounded up.

        Its rate is chosen like the peak of ``plain_for_total``, around r / (1 - momentum) for stage 1's peak r: with
        that rate the weights move as far in the long run as in stage 1. The network has the averaged weights of
        schedule-free SGD.

        Raises:
            DivergedRunError: training diverged with every rate.
            FaultError: training failed otherwise with one of them.
        """

        def train(rate: float) -> MethodResult:
            schedule = self.one.schedule.model_copy(update={"name": "constant", "peak": rate, "milestones": ()})
            decay = self.one.optimizer.model_dump(include={"weight_decay", "no_decay"})
            optimizer = OptimizerConfig(name="schedule_free", **decay)
            changes = {"schedule": schedule, "optimizer": optimizer}
            result = self._run_stage_1(f"schedule_free_{rate:g}", changes, self._total())
            return result._replace(network=str(next(Path(result.network).parent.glob("*-final.ckpt"))))

        options = self.one.optimizer
        momentum = {"momentum": 0.9, "sgd": 0.0}[options.name] if options.momentum is None else options.momentum
        return self._best_training("schedule_free", "schedule-free SGD", self.one.schedule.peak / (1 - momentum), train)

    def _best_training(
        self, method: str, what: str, middle: float, train: Callable[[float], MethodResult]
    ) -> MethodResult:
        """Return the training with the rate that an earlier seed chose.

        Without an earlier seed, or if training diverges with its rate here, return the best, on ``val``, of the
        trainings with rates around ``middle``.
        """
        rows = map(read_row, sorted(self.folder.parent.parent.glob(f"seed_*/{self.folder.name}/{method}.json")))
        earlier, seed = next(((row["choice"], row["seed"]) for row in rows if row.get("choice")), (None, None))
        rates, failures, seconds = [factor * middle for factor in PEAK_FACTORS], list[str](), 0.0
        results: dict[float, MethodResult] = {}
        for rate in rates if earlier is None else [earlier, *(rate for rate in rates if rate != earlier)]:
            try:
                results[rate] = train(rate)
            except DivergedRunError as fault:
                failures.append(f"{rate:g}" + (f" (which seed {seed} chose)" if rate == earlier else ""))
                seconds += fault.seconds
                _log.info(f"{what} with the peak {rate:g} is left out: {fault}")
            if earlier in results:
                break
        seconds += sum(result.seconds for result in results.values())
        words = f"with the peak {' and '.join(failures)}" if failures else ""
        if not results:
            raise DivergedRunError(f"{what} diverged {words}; see the logs in {self.folder}", seconds, words)
        best = min(results, key=lambda rate: self.measure(results[rate].network)["val_loss"])
        return results[best]._replace(seconds=seconds, chosen=f"peak {best:g}", choice=best, diverged=words)

    def _total(self) -> int:
        """Return the passes of both stages, choices included, rounded up."""
        passes = self._result("stage_2").passes
        return math.ceil(self.passes_of_stage_1 + passes - 1e-9)

    def plain_to_the_end(self) -> MethodResult:
        """Continue stage 1 itself, with the state of its optimizer, to the end of its schedule."""
        total = self.one.schedule.last_epoch or self.at
        return self._run_stage_1("plain_to_the_end", {}, total, [f"--from={self.checkpoint}"])

    def _run_stage_2(self, name: str, settings: StageTwoConfig) -> MethodResult:
        self._run_stage("stage_2", name, settings, [str(self.checkpoint)])
        result = self._result(name)
        network = next((self.folder / name / STAGE_2_CHECKPOINTS).glob("*-final.ckpt"))
        passes = self.passes_of_stage_1 + result.passes
        return MethodResult(str(network), passes, result.seconds, kept_in_words(result))

    def _run_stage_1(self, name: str, changes: dict[str, Any], total: int, options: Sequence[str] = ()) -> MethodResult:
        """Train to epoch ``total`` with changed options, without snapshots, and with no evaluation before the end."""
        updates = changes | {"epochs": total, "stop": None, "evaluate_every_epochs": total}
        updates["snapshots"] = self.one.snapshots.model_copy(update={"first_epoch": total + 1})
        self._run_stage("stage_1", name, self.one.model_copy(update=updates), options)
        checkpoints = self.folder / name / STAGE_1_CHECKPOINTS
        seconds = read_stage_1(checkpoints).seconds_until(total)
        return MethodResult(str(checkpoint_of(checkpoints.parent, total)), total, seconds)

    def _run_stage(
        self, program: str, name: str, settings: StageOneConfig | StageTwoConfig, options: Sequence[str]
    ) -> None:
        title = f"seed {self.one.seed}, epoch {self.at}: {name}"
        run_stage(program, self.data, self.folder / name, settings, options, title)

    def _result(self, name: str) -> StageTwoResult:
        """Read the ``result.json`` of a stage 2 that this comparison ran."""
        return StageTwoResult.read(self.folder / name / RESULT)
