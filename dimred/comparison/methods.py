"""The methods to compare; each makes a network, from the end of the same stage 1 or from scratch."""

import logging
import math
from pathlib import Path
from typing import Any, ClassVar

from dimred.averaging.choice import Choice
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.comparison.comparison import STAGE_2, Comparison, MethodResult
from dimred.comparison.rows import read_row
from dimred.comparison.runs import DivergedRunError
from dimred.config import OptimizerConfig, PartsOfStep, StageOneConfig, StageTwoConfig
from dimred.evaluation.averages import SnapshotAverages, choose_average
from dimred.io.atomic import make_folder
from dimred.run_files.stage_two_result import FORWARD
from dimred.stages.method import plan_of
from dimred.stages.parent import StageOneRun
from dimred.vectors.parameters import from_arrays, to_arrays

_log = logging.getLogger(__name__)

PEAK_FACTORS = (0.5, 1.0, 2.0)  # times stage 1's peak
_MOMENTUM = {"momentum": 0.9, "sgd": 0.0}  # defaults of the optimizers that schedule-free SGD can replace


class ComparedMethod:
    """A method in a comparison.

    Attributes:
        name: its name, also the name of its row and file.
        title: its title in tables.
        needs_stage_2: whether it needs stage 2's result.
        is_needed: whether others need its result, so that the comparison ends if its training diverges.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs_stage_2: ClassVar[bool] = False
    is_needed: ClassVar[bool] = False

    def title_with(self, config_2: StageTwoConfig) -> str:
        """Return the title in a comparison with this stage 2."""
        return self.title

    def why_left_out(self, config_1: StageOneConfig, config_2: StageTwoConfig, at: int) -> str | None:
        """Return a sentence that says why it does not apply to this stage 1 at epoch ``at``; None if it does."""
        return None

    def check(self, parent: StageOneRun, config_2: StageTwoConfig) -> None:
        """Refuse a stage 1 that has not kept what the method needs.

        Raises:
            ConfigError, SeriesError: it lacks something.
        """

    def make(self, comparison: Comparison) -> MethodResult:
        """Make the network.

        Raises:
            DivergedRunError: training diverged.
            FaultError: training failed in another way.
        """
        raise NotImplementedError


class LastWeights(ComparedMethod):
    """Stage 1's weights at the epoch of the comparison."""

    name = "last"
    title = "last weights of stage 1"

    def make(self, comparison: Comparison) -> MethodResult:
        """Take the weights."""
        return MethodResult(str(comparison.checkpoint), comparison.passes_of_stage_1)


class BestAverage(ComparedMethod):
    """The snapshot average that ``val`` chooses, or the last weights if they are better."""

    name = "average"
    title = "best average of its snapshots"

    def make(self, comparison: Comparison) -> MethodResult:
        """Choose the average, and write it."""
        evaluator = comparison.evaluator
        network = comparison.network
        from_arrays(network.get_parameters(), read_checkpoint(comparison.checkpoint), "WEIGHTS")
        parent = StageOneRun.open(comparison.checkpoint)
        averages = SnapshotAverages(parent.snapshots() if parent.has_snapshots else None, evaluator.layout)
        choice = Choice(passes_each=evaluator.passes_each, metric=comparison.metrics[0])
        last = evaluator.layout.flatten(to_arrays(network.trainable_params()))
        best, weights = choose_average(averages, evaluator.measure_val_of, last, choice)
        evaluator.put(weights)
        file = comparison.folder / "average.ckpt"
        make_folder(comparison.folder)
        write_checkpoint(file, to_arrays(network.get_parameters()))
        passes = comparison.passes_of_stage_1 + FORWARD * choice.forward_passes
        return MethodResult(str(file), passes, choice.seconds, best.name)


class StageTwoAsConfigured(ComparedMethod):
    """Stage 2 as configured."""

    name = STAGE_2
    title = "stage 2"
    is_needed = True

    def title_with(self, config_2: StageTwoConfig) -> str:
        """Return the title with the name of stage 2's own method."""
        return f"{self.title}: {config_2.method_name}"

    def check(self, parent: StageOneRun, config_2: StageTwoConfig) -> None:
        """Check what stage 2's own method needs."""
        plan_of(config_2).check_parent(parent)

    def make(self, comparison: Comparison) -> MethodResult:
        """Run stage 2."""
        return comparison.run_stage_2(self.name, comparison.config_2)


class CooldownInstead(ComparedMethod):
    """Stage 2 with a cooldown instead of its own method, for as many training passes as that method took.

    It keeps stage 1's batch size and step parts, such as clipping.
    """

    name = "cooldown"
    title = "cooldown in place of stage 2's own method"
    needs_stage_2 = True

    def title_with(self, config_2: StageTwoConfig) -> str:
        """Return the title with the name of the method that it replaces."""
        return f"cooldown in place of the {config_2.method_name}"

    def why_left_out(self, config_1: StageOneConfig, config_2: StageTwoConfig, at: int) -> str | None:
        """Leave it out if stage 2 is itself a cooldown, or trains nothing."""
        if config_2.method == self.name:
            return "it takes the place of a search, but method is cooldown"
        if config_2.epochs == 0:
            return f"it takes as many passes as stage 2's training, but method {config_2.method_name} trains nothing"
        return None

    def check(self, parent: StageOneRun, config_2: StageTwoConfig) -> None:
        """Check that there is a rate to cool down."""
        plan_of(config_2.model_copy(update={"method": self.name})).check_parent(parent)

    def make(self, comparison: Comparison) -> MethodResult:
        """Run the cooldown."""
        config_1 = comparison.config_1
        config_2 = comparison.config_2
        replaced = comparison.result_of(STAGE_2)
        changes: dict[str, Any] = {
            "method": self.name,
            "epochs": math.ceil(replaced.training_passes(replaced.epochs) - 1e-9),
            "data": config_2.data.model_copy(update={"batch_size": config_1.data.batch_size}),
        }
        changes |= {key: getattr(config_1, key) for key in PartsOfStep.model_fields}
        return comparison.run_stage_2(self.name, config_2.model_copy(update=changes))


class TunedTraining(ComparedMethod):
    """Training from the beginning for as many passes as both stages took, rounded up, with a rate that ``val`` chooses.

    ``val`` chooses it on the first seed that is compared at this epoch; the other seeds use it too, unless their
    training diverges at it.

    Attributes:
        words: the training, in words.
    """

    words: ClassVar[str]
    needs_stage_2 = True

    def middle(self, config_1: StageOneConfig) -> float:
        """Return the rate around which to try rates."""
        raise NotImplementedError

    def train(self, comparison: Comparison, rate: float) -> MethodResult:
        """Train at a rate."""
        raise NotImplementedError

    def make(self, comparison: Comparison) -> MethodResult:
        """Train at the rate that an earlier seed chose.

        Without an earlier seed, or if training diverges at its rate here, train at rates around ``middle`` and take
        the training that is best on ``val``.

        Raises:
            DivergedRunError: training diverged at every rate.
            FaultError: training failed in another way at one of them.
        """
        folder = comparison.folder
        rows = map(read_row, sorted(folder.parent.parent.glob(f"seed_*/{folder.name}/{self.name}.json")))
        earlier, seed = next(((row["choice"], row["seed"]) for row in rows if row.get("choice")), (None, None))
        rates = [factor * self.middle(comparison.config_1) for factor in PEAK_FACTORS]
        if earlier is not None:
            rates = [earlier, *(rate for rate in rates if rate != earlier)]
        failures = list[str]()
        seconds = 0.0
        results: dict[float, MethodResult] = {}
        for rate in rates:
            try:
                results[rate] = self.train(comparison, rate)
            except DivergedRunError as fault:
                failures.append(f"{rate:g}" + (f" (which seed {seed} chose)" if rate == earlier else ""))
                seconds += fault.seconds
                _log.info(f"{self.words} with the peak {rate:g} is left out: {fault}")
            if earlier in results:
                break
        seconds += sum(result.seconds for result in results.values())
        diverged = f"with the peak {' and '.join(failures)}" if failures else ""
        if not results:
            raise DivergedRunError(f"{self.words} diverged {diverged}; see the logs in {folder}", seconds, diverged)
        best = min(results, key=lambda rate: comparison.measure(results[rate].network)["val_loss"])
        return results[best]._replace(seconds=seconds, chosen=f"peak {best:g}", choice=best, diverged=diverged)


class PlainForTotal(TunedTraining):
    """Plain training with a linear schedule made for the total; its rate is the peak."""

    name = "plain_for_total"
    title = "plain training, schedule made for this total"
    words = "plain training"

    def middle(self, config_1: StageOneConfig) -> float:
        """Return stage 1's peak."""
        return config_1.schedule.peak

    def train(self, comparison: Comparison, rate: float) -> MethodResult:
        """Train with a peak."""
        total = comparison.total_passes
        schedule = comparison.config_1.schedule
        linear = {
            "name": "linear",
            "peak": rate,
            "warmup_epochs": min(schedule.warmup_epochs, total - 1),
            "total_epochs": total,
            "milestones": (),
        }
        return comparison.run_stage_1(f"plain_{rate:g}", {"schedule": schedule.model_copy(update=linear)}, total)


class ScheduleFree(TunedTraining):
    """Schedule-free SGD; the network gets its averaged weights."""

    name = "schedule_free"
    title = "schedule-free SGD for this total"
    words = "schedule-free SGD"

    def why_left_out(self, config_1: StageOneConfig, config_2: StageTwoConfig, at: int) -> str | None:
        """Leave it out beside an optimizer that is not SGD."""
        if config_1.optimizer.name in _MOMENTUM:
            return None
        return f"it trains with SGD, but stage 1's optimizer is {config_1.optimizer.name}"

    def middle(self, config_1: StageOneConfig) -> float:
        """Return r / (1 - momentum) for stage 1's peak r: in the long run the weights move as far as in stage 1."""
        momentum = config_1.optimizer.momentum
        if momentum is None:
            momentum = _MOMENTUM[config_1.optimizer.name]
        return config_1.schedule.peak / (1 - momentum)

    def train(self, comparison: Comparison, rate: float) -> MethodResult:
        """Train at a constant rate."""
        config_1 = comparison.config_1
        schedule = config_1.schedule.model_copy(update={"name": "constant", "peak": rate, "milestones": ()})
        decay = config_1.optimizer.model_dump(include={"weight_decay", "no_decay"})
        changes = {"schedule": schedule, "optimizer": OptimizerConfig(name="schedule_free", **decay)}
        result = comparison.run_stage_1(f"schedule_free_{rate:g}", changes, comparison.total_passes)
        return result._replace(network=str(next(Path(result.network).parent.glob("*-final.ckpt"))))


class PlainToTheEnd(ComparedMethod):
    """Stage 1 itself, continued with its optimizer's state to the end of its schedule."""

    name = "plain_to_the_end"
    title = "plain training to the end of its schedule"

    def why_left_out(self, config_1: StageOneConfig, config_2: StageTwoConfig, at: int) -> str | None:
        """Leave it out if the schedule has ended, or has no end."""
        if at < (config_1.schedule.last_epoch or 0):
            return None
        return f"it continues stage 1's schedule, which does not go beyond epoch {at}"

    def make(self, comparison: Comparison) -> MethodResult:
        """Continue the training."""
        total = comparison.config_1.schedule.last_epoch or comparison.at
        return comparison.run_stage_1(self.name, {}, total, [f"--from={comparison.checkpoint}"])


_ALL = (
    LastWeights(),
    BestAverage(),
    StageTwoAsConfigured(),
    CooldownInstead(),
    PlainForTotal(),
    ScheduleFree(),
    PlainToTheEnd(),
)
METHODS: dict[str, ComparedMethod] = {method.name: method for method in _ALL}
"""Name -> method, in the order in which methods are run and shown."""
