"""The methods of a comparison; each makes a network, from the end of the same stage 1 or from the beginning."""

import json
import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.config import (
    CooldownConfig,
    DataConfig,
    OptimizerConfig,
    StageOneConfig,
    StageTwoConfig,
    config_text,
    parts_of,
)
from dimred.data.batches import steps_in_epoch
from dimred.errors import ConfigError, DivergedError, FaultError
from dimred.evaluation.evaluator import OnSplits
from dimred.io.atomic import atomic_write
from dimred.io.checksums import read_checksummed
from dimred.io.run_names import RESULT, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS, checkpoint_place, full_checkpoints
from dimred.launch.processes import start
from dimred.report.record import (
    choosing_passes,
    kept_in_words,
    passes_of,
    read_stage_1,
    seconds_of,
    training_passes,
)
from dimred.stages.task import build_data, build_network, build_scores
from dimred.vectors.parameters import from_arrays

_log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
PEAK_FACTORS = (0.5, 1.0, 2.0)  # of stage 1's peak
METHODS = ("last", "search", "stage_2", "average", "plain_for_total", "schedule_free", "plain_to_the_end")
"""Names of the methods of ``Comparison``, in the order in which they are run."""
AFTER_STAGE_2 = ("average", "plain_for_total", "schedule_free")  # need its result


class Made(NamedTuple):
    """The result of a method.

    Attributes:
        network: path of a checkpoint with parameters and statistics.
        passes: cost of the training that led to it, stage 1's included, in epochs of ordinary training. A forward pass
            for a choice counts a third; whole training runs that ``val`` did not choose are not counted.
        seconds: the method's own time, without stage 1's; it includes choices, and training runs that were completed
            but not chosen.
        chosen: what ``val`` chose, in words; empty if there was nothing to choose.
        choice: the chosen rate, if other seeds are to use it too.
    """

    network: str
    passes: float
    seconds: float = 0.0
    chosen: str = ""
    choice: float | None = None


class Comparison:
    """One stage 1, taken to end at a given epoch, and the methods that are compared for it.

    A stage 1 of several ranks is continued by one process, with their batches as micro-batches.

    Args:
        data: folder with train/, val/ and test/.
        run: folder of the stage 1.
        one: its configuration.
        two: stage 2's; its network and loss must be stage 1's, and its seed is replaced by stage 1's.
        at: the epoch.
        folder: folder for the rows and runs.

    Raises:
        ConfigError: stage 1 has no full checkpoint of that epoch, or was trained on other data.
    """

    def __init__(self, data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig, at: int, folder: Path):
        self.data, self.run, self.at, self.folder = data, run, at, folder
        self.spent = at + read_stage_1(run / STAGE_1_CHECKPOINTS).stopping_passes(at)
        self.checkpoint = checkpoint_of(run, at)
        images = {split: build_data(two.with_parts_of(parts_of(one)).data, data, split) for split in SPLITS}
        n_ranks = ranks_of(one, images["train"].n_images, self.checkpoint)
        if n_ranks > 1:
            _log.info(
                f"{run} was trained on {n_ranks} devices; here one process takes their batches one after the other"
            )
        self.one = one.model_copy(update=on_one_process(one, n_ranks))
        two = two.with_epochs_after(at).with_parts_of(parts_of(one)).model_copy(update={"seed": one.seed})
        self.two = two.model_copy(update=on_one_process(two, n_ranks))
        self.network = build_network(one)
        self.on = OnSplits(self.network, images, build_scores(two), seed=one.seed, n_batches=two.reestimate_batches)
        self.measured = cache(self._measured)

    def _measured(self, network: str) -> dict[str, Any]:
        """Measure on ``val`` and ``test``: the metric before BatchNorm is re-estimated, metric and loss after that."""
        from_arrays(self.network.get_parameters(), read_checkpoint(Path(network)), network)
        found: dict[str, Any] = {split: self.on.metric(split) for split in SPLITS[1:]}
        self.on.reestimate()
        for split in SPLITS[1:]:
            losses, metric = self.on.loss_and_metric(split)
            found |= {f"{split}_reestimated": metric, f"{split}_loss": float(losses.mean())}
        return found

    def last(self) -> Made:
        """Take stage 1's last weights."""
        return Made(str(self.checkpoint), self.spent)

    def average(self) -> Made:
        """Take the average of snapshots that stage 2 found best, or the last weights if these were better."""
        result, saved = self._result("stage_2"), self.folder / "stage_2" / STAGE_2_CHECKPOINTS
        seconds = result.get("average_seconds", 0.0) + result.get("start_seconds", 0.0)
        point = "average" if "average_of" in result else "start"
        chosen = result.get("average_of", result.get("started_from", "last"))
        found = next(saved.glob(f"*-{point}.ckpt"), self.checkpoint)  # if no average was better than the last weights
        return Made(str(found), self.spent + choosing_passes(result, "start", "average"), seconds, chosen)

    def stage_2(self) -> Made:
        """Run stage 2 without a search; if one is configured, match its training passes, with stage 1's batch size."""
        changes: dict[str, Any] = {"keep_best": True}
        if self.two.search is not None:
            searched = self._result("search")
            changes |= {
                "search": None,
                "cooldown": self.two.cooldown or CooldownConfig(),
                "epochs": math.ceil(training_passes(searched, searched["epochs"]) - 1e-9),
            }
            changes |= {key: getattr(self.one, key) for key in parts_of(self.one) if key != "batch_size"}
            changes["start"] = "last" if self.two.start == "mean" else self.two.start
            changes["data"] = self.two.data.model_copy(update={"batch_size": self.one.data.batch_size})
        return self._run_stage_2("stage_2", self.two.model_copy(update=changes))

    def search(self) -> Made:
        """Run stage 2 with the configured search."""
        return self._run_stage_2("search", self.two)

    def plain_for_total(self) -> Made:
        """Train from the beginning with a linear schedule made for the passes of both stages, rounded up.

        ``val`` chooses the peak on the first seed that is compared at this epoch; the other seeds use it too.

        Raises:
            FaultError: training diverged with every peak, or failed otherwise with one of them.
        """
        total = self._total()

        def train(peak: float) -> Made:
            warmup = min(self.one.schedule.warmup_epochs, total - 1)
            made = {"name": "linear", "peak": peak, "warmup_epochs": warmup, "total_epochs": total}
            schedule = self.one.schedule.model_copy(update=made | {"milestones": ()})
            return self._run_stage_1(f"plain_{peak:g}", {"schedule": schedule}, total)

        return self._best_training("plain_for_total", "plain training", self.one.schedule.peak, train)

    def schedule_free(self) -> Made:
        """Train from the beginning with schedule-free SGD for the passes of both stages, rounded up.

        Its rate is chosen like the peak of ``plain_for_total``, around r / (1 - momentum) for stage 1's peak r: with
        that rate the weights move as far in the long run as in stage 1. The network is its averaged point.

        Raises:
            FaultError: training diverged with every rate, or failed otherwise with one of them.
        """

        def train(rate: float) -> Made:
            schedule = self.one.schedule.model_copy(update={"name": "constant", "peak": rate, "milestones": ()})
            kept = self.one.optimizer.model_dump(include={"weight_decay", "no_decay"})
            optimizer = OptimizerConfig(name="schedule_free", **kept)
            changes = {"schedule": schedule, "optimizer": optimizer}
            made = self._run_stage_1(f"schedule_free_{rate:g}", changes, self._total())
            return made._replace(network=str(next(Path(made.network).parent.glob("*-final.ckpt"))))

        options = self.one.optimizer
        momentum = {"momentum": 0.9, "sgd": 0.0}[options.name] if options.momentum is None else options.momentum
        return self._best_training("schedule_free", "schedule-free SGD", self.one.schedule.peak / (1 - momentum), train)

    def _best_training(self, method: str, what: str, middle: float, train: Callable[[float], Made]) -> Made:
        """Train with each rate around the middle one, or with that of an earlier seed; return the best on ``val``."""
        rows = sorted(self.folder.parent.parent.glob(f"seed_*/{self.folder.name}/{method}.json"))  # of other seeds
        kept = [json.loads(row.read_text(encoding="utf-8"))["choice"] for row in rows[:1]]
        tried: dict[float, Made] = {}
        for rate in kept or [factor * middle for factor in PEAK_FACTORS]:
            try:
                tried[rate] = train(rate)
            except DivergedError as fault:
                _log.info(f"{what} with the peak {rate:g} is left out: {fault}")
        if not tried:
            raise FaultError(f"{what} failed with each peak; see the logs in {self.folder}")
        best = min(tried, key=lambda rate: self.measured(tried[rate].network)["val_loss"])
        seconds = sum(each.seconds for each in tried.values())
        return tried[best]._replace(seconds=seconds, chosen=f"peak {best:g}", choice=best)

    def _total(self) -> int:
        """Return the passes of both stages, choices included, rounded up."""
        passes = passes_of(self._result("stage_2" if self.two.search is None else "search"))
        return math.ceil(self.spent + passes - 1e-9)

    def plain_to_the_end(self) -> Made:
        """Train stage 1 itself, optimizer state included, to the end of its schedule."""
        total = self.one.schedule.last_epoch or self.at
        return self._run_stage_1("plain_to_the_end", {}, total, [f"--from={self.checkpoint}"])

    def _run_stage_2(self, name: str, settings: StageTwoConfig) -> Made:
        self._run_program(name, "stage_2", settings, [str(self.checkpoint)])
        result = self._result(name)
        network = next((self.folder / name / STAGE_2_CHECKPOINTS).glob("*-final.ckpt"))
        return Made(str(network), self.spent + passes_of(result), seconds_of(result), kept_in_words(result))

    def _run_stage_1(self, name: str, changes: dict[str, Any], total: int, options: Sequence[str] = ()) -> Made:
        """Train to epoch ``total`` with changed options, without snapshots, and with no evaluation before the end."""
        updates = changes | {"epochs": total, "stop": None, "evaluate_every": total}
        updates["snapshots"] = self.one.snapshots.model_copy(update={"first_epoch": total + 1})
        self._run_program(name, "stage_1", self.one.model_copy(update=updates), options)
        checkpoints = self.folder / name / STAGE_1_CHECKPOINTS
        return Made(str(checkpoint_of(checkpoints.parent, total)), total, read_stage_1(checkpoints).seconds)

    def _run_program(
        self, name: str, program: str, settings: StageOneConfig | StageTwoConfig, options: Sequence[str]
    ) -> None:
        """Run a program of ``dimred.pipelines`` in a folder of its own, with its log beside it, or resume it there.

        Raises:
            DivergedError: the program met a fault, most likely that its training diverges.
            FaultError: the program was ended, or failed otherwise.
        """
        config, log, out = (self.folder / f"{name}{ending}" for ending in (".yaml", ".log", ""))
        config.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(config, config_text(settings))
        what = f"seed {self.one.seed}, epoch {self.at}: {name}"
        _log.info(f"{what}, see {log}")
        _log.debug(what)
        command = [sys.executable, "-m", f"dimred.pipelines.{program}", self.data, *options, f"--config={config}"]
        with ExitStack() as running:
            status = start(running, [*command, f"--out={out}", "--resume"], log).wait()
        if status != 0:
            kind = DivergedError if status == DivergedError.exit_status else FaultError
            raise kind(f"{what} ended with status {status}; {log} says why")

    def _result(self, name: str) -> dict[str, Any]:
        """Read the ``result.json`` of a stage 2 that this comparison ran."""
        return read_checksummed(self.folder / name / RESULT)


def checkpoint_of(run: Path, epoch: int) -> Path:
    """Find the full checkpoint that stage 1 wrote after an epoch.

    Raises:
        ConfigError: there is none.
    """
    found = full_checkpoints(run / STAGE_1_CHECKPOINTS)
    if epoch not in found:
        there = ", ".join(map(str, sorted(found))) or "none"
        raise ConfigError(
            f"RUN is {str(run)!r}, which has no full checkpoint of epoch {epoch} (of these epochs: {there}); finish "
            "stage 1 first (its --resume goes on with it), or train it with a smaller checkpoints.every_epochs"
        )
    return found[epoch]


def ranks_of(one: StageOneConfig, n_images: int, checkpoint: Path) -> int:
    """Compute how many ranks trained a stage 1: the smallest number that gives its steps per epoch.

    Raises:
        ConfigError: no number gives these steps, so the run had other data.
    """
    place, size = checkpoint_place(checkpoint), one.data.batch_size
    steps = place.steps_per_epoch if place else None
    for n_ranks in range(1, n_images // size + 1):
        if steps_in_epoch(n_images, size, n_ranks, one.accumulation) == steps:
            return n_ranks
    raise ConfigError(
        f"{checkpoint} is of a run with {steps} steps an epoch, which {n_images} images in batches of "
        f"{size} don't make on any number of devices; give the DATA that it was trained with"
    )


def on_one_process(stage: StageOneConfig | StageTwoConfig, n_ranks: int) -> dict[str, int | DataConfig]:
    """Return the options that make one process take the batches of several ranks as micro-batches."""
    sink = stage.data.sink and n_ranks == 1
    return {"accumulation": stage.accumulation * n_ranks, "data": stage.data.model_copy(update={"sink": sink})}
