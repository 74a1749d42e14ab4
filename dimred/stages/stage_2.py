"""Stage 2: continue a run of stage 1 with a step of another kind, and keep the network that ``val`` chooses."""

import logging
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

from dimred.averaging.choice import Candidate, Choice
from dimred.config import StageTwoConfig
from dimred.data.batches import STAGE_2_EPOCHS_FROM
from dimred.errors import ConfigError, NothingAcceptedError
from dimred.evaluation.averages import SnapshotAverages, choose_average, from_rank_zero
from dimred.io.atomic import retry
from dimred.io.checksums import write_checksummed
from dimred.io.metrics_file import loss_text, metric_text, read_metrics
from dimred.io.run_names import METRICS, RESULT, STAGE_2_CHECKPOINTS
from dimred.stages.candidates import Candidates, mean_of, put_file
from dimred.stages.cooldown import Cooldown
from dimred.stages.loop import Progress
from dimred.stages.parent import StageOneRun
from dimred.stages.records import finite
from dimred.stages.run import Run
from dimred.subspace.basis import SubspaceBasis
from dimred.train_step.optimizers import state_parameters
from dimred.train_step.protocol import Result, Step, parameters_to_save
from dimred.vectors.parameters import preserved, to_arrays

_log = logging.getLogger(__name__)


class StageTwo:
    """Stage 2 from its start to the network that is kept: it has a run and candidates.

    The candidates are the start, the best average of stage 1's snapshots (unless that was a choice for the start), the
    last epoch, and the mean of the epochs; without a cooldown they are the start, every epoch, and the mean.

    Args:
        run: the run.
        step: the step, whichever it is; a step that reads its numbers itself has a record of its own.
        parent: the run of stage 1 that is continued.
        cooldown: the cooldown as it begins; None without one.
        basis: the basis that the step searches in, on every rank; None without one.
    """

    def __init__(
        self,
        run: Run[StageTwoConfig],
        step: Step,
        parent: StageOneRun,
        cooldown: Cooldown | None = None,
        basis: SubspaceBasis | None = None,
    ) -> None:
        self.run, self.step, self.parent, self.cooldown, self.basis = run, step, parent, cooldown, basis
        self._settings, self._task, self._ranks, self._progress = run.settings, run.task, run.ranks, run.progress
        self._per_epoch, self._n_epochs = run.task.steps_per_epoch, run.settings.n_epochs
        self._progress.epoch = 0
        self._step_records: list[dict[str, Any]] = []  # of a step that reads its numbers itself
        self.candidates = Candidates(
            run.folder / STAGE_2_CHECKPOINTS, self._settings.model.file_prefix, self._per_epoch, self._ranks,
            self._new_choice(),
        )  # fmt: skip
        sources = {"data": run.task.data, "weights": parent.weights, "basis": basis and basis.path}
        self.result: dict[str, Any] = {
            "start": self._settings.start,
            "epochs": self._n_epochs,
            "cooldown": cooldown and cooldown.summary(),
            "metric": run.metric,
            f"{run.metric}_by_epoch": {},
            "training_seconds": 0.0,
            "sources": {name: path and str(path.resolve()) for name, path in sources.items()},
            "basis": None,
        }
        if cooldown is not None:
            by = f"{cooldown.updates} updates by {cooldown.optimizer.name}"
            run.identity["WEIGHTS"] = f"{by}, at the rate {cooldown.rate:g}"
        if basis is not None:
            run.identity["PCA_MAT"] = basis.digest

    def _new_choice(self) -> Choice:
        """Return an empty choice that knows the cost of a measurement."""
        passes_each = self.run.evaluator.passes_each if "val" in self._task.images else 0.0
        return Choice(passes_each=passes_each, metric=self.run.metric)

    def go(self, allowed: Sequence[str] = ()) -> None:
        """Begin or resume, train the remaining epochs, keep the best candidate, and write the result.

        Args:
            allowed: keys that may differ from before.

        Raises:
            ConfigError: another key or the metric has changed; see ``Run.restore``.
        """
        run, progress = self.run, self._progress
        state = run.restore(self.step, allowed, self._n_epochs)
        if state is None:
            self._put_start()
        else:
            self._restore(state.arrays, state.values)
        if (cooldown := self.cooldown) is not None:
            _log.info(
                f"cooldown: {cooldown.optimizer.name} from {cooldown.factor:.3g} of stage 1's rate "
                f"{cooldown.rate:.4g}, {cooldown.schedule} to 0 ({cooldown.taken_from})"
            )
        run.write_configuration()
        self._ranks.run_on_rank_zero(lambda: (run.folder / RESULT).unlink(missing_ok=True))  # of an earlier end
        with run.open_records():
            self._ranks.run_on_rank_zero(lambda: run.states.forget_after(run.n_steps))
            if progress.epoch == 0:
                self._measure_average()
                self.result[f"{run.metric}_start"] = self._record_point("start")
                _log.info(f"stage 2 starts from {self._settings.start!r}: {run.metric} {run.measured_text(2)}")
                progress.next_epoch()
                self.save(progress)
            self._train()
        self._keep()

    def _restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore from a state what stage 2 has measured and chosen."""
        before = values["result"]["metric"]
        if before != self.run.metric:
            raise ConfigError(
                f"metric is {self.run.metric}, but the run has measured {before}; a metric can't change on the way: "
                "leave it, or begin in a new folder"
            )
        configured = {key: self.result[key] for key in ("epochs", "cooldown")}  # which may have been allowed to change
        self.result |= values["result"] | configured
        self.candidates.restore(arrays, values["candidates"])

    def _put_start(self) -> None:
        """Set the network to the weights that stage 2 begins with."""
        start, network = self._settings.start, self._task.network
        self.result["start_effective_size"] = 1.0
        if start == "mean" and self.basis is not None:
            basis, layout = self.basis, self.run.evaluator.layout
            # Rank 0's mean, because a different host may have only the rows, not the file beside them that has it.
            self.run.evaluator.put(
                from_rank_zero(self._ranks.run_on_rank_zero(lambda: mean_of(basis)), layout, self._ranks)
            )
            n_snapshots = len(basis.snapshots) if self._ranks.is_rank_zero else 0
            self.result["start_effective_size"] = float(self._ranks.sum([n_snapshots])[0])
        elif start == "best":
            self._choose_average("start", "started_from")
        elif self._settings.starts_from_file:
            put_file(list(network.get_parameters()), Path(start), f"start {start!r}", self._ranks)
        if self.step.ema is not None and start != "last":
            self.step.ema.restart()

    def _choose_average(self, what: str, chosen_as: str) -> Candidate:
        """Put the best of the last weights and the averages of the snapshots into the network."""
        choice, evaluator = self._new_choice(), self.run.evaluator
        series = self._ranks.run_on_rank_zero(lambda: self.parent.snapshots() if self.parent.has_snapshots else None)
        averages = SnapshotAverages.of_series(series, evaluator.layout, self._ranks)
        last = evaluator.layout.flatten(to_arrays(self._task.network.trainable_params()))
        chosen, weights = choose_average(averages, evaluator.measure_val_of, last, choice)
        evaluator.put(weights)
        choice.tell(what)
        self.result |= {chosen_as: chosen.name, f"{what}_effective_size": chosen.effective_size}
        self.result |= choice.summary(what)
        return chosen

    def _measure_average(self) -> None:
        """Measure the averages of the snapshots: the best is a candidate, or else shown beside; change no weights."""
        is_candidate = self._settings.adds_average
        what = "average" if is_candidate else "alternative"
        is_wanted = is_candidate or (self._settings.shows_average and "val" in self._task.images)
        if not is_wanted or not self._ranks.any(bool(self._ranks.run_on_rank_zero(lambda: self.parent.has_snapshots))):
            return
        with preserved(list(self._task.network.get_parameters())):
            chosen = self._choose_average(what, f"{what}_of")
            if chosen.name != "last":  # an average is better than the start
                self.candidates.save("average", self._parameters())
                self.candidates.add_average(chosen)
                self.result[f"{self.run.metric}_{what}"] = self.run.evaluator.metric(self._settings.data.eval_split)

    def _parameters(self) -> list[Parameter]:
        """Return the network's parameters, and those of the step's parts: the EMA and the loss scale."""
        known = {id(parameter) for parameter in state_parameters(self.step.optimizer)}
        return [parameter for parameter in parameters_to_save(self.step) if id(parameter) not in known]

    def _train(self) -> None:
        """Train the remaining epochs; end early if the step says that it makes no progress any more."""
        progress = self._progress
        if self.step.reads_each_step:
            self._step_records = read_metrics(self.run.folder / METRICS)
        try:
            self.run.loop("stage 2", self.step, self._n_epochs, STAGE_2_EPOCHS_FROM).run(progress, self)
        except NothingAcceptedError as stop:
            self.result |= {"stopped": str(stop), "epochs": len(self._step_records) / self._per_epoch}
            _log.info(f"the search stops in epoch {progress.epoch}: {stop}")
            if progress.done:  # the steps since the last epoch count as an epoch, whose end is a candidate
                self.run.arrays_of(self.step)
                self.after_epoch(progress)

    @property
    def has_ended(self) -> bool:
        """Return False: only a step itself ends stage 2 early."""
        return False

    def reads_after(self, done: int) -> bool:
        """Return False: nothing but the step decides when it is read."""
        return False

    def after_launch(self) -> None:
        """Count the step for the profiler."""
        self.run.profiler.after_step()

    def after_step(self, result: Result, progress: Progress) -> str | None:
        """Check the loss for divergence; or record the step, if it has a record of its own."""
        self.run.see(result, diverges=not self.step.reads_each_step)
        if not self.step.reads_each_step:
            return None
        number, metric = len(self._step_records) + 1, self.run.metric
        self._step_records.append(self.run.records.write(epoch=progress.epoch, step=number, **result.record()))
        value = [self.result[f"{metric}_start"], *self.result[f"{metric}_by_epoch"].values()][-1]
        loss = loss_text(self._step_records[-1]["loss_after"])
        return f"loss {loss}, {metric} {metric_text(metric, value, 1)}"

    def save(self, progress: Progress) -> None:
        """Save the state to resume from."""
        arrays = self.run.arrays_of(self.step) | self.candidates.state_arrays()
        values = {"candidates": self.candidates.state_values(), "parent": self.parent.facts()}
        self.run.save(arrays, result=self.result, **values)

    def after_epoch(self, progress: Progress) -> str:
        """Save and measure the point that was reached, record the epoch, and return a status for the progress bar."""
        run, started = self.run, time.perf_counter()
        self.result[f"{run.metric}_by_epoch"][str(progress.epoch)] = self._record_point(progress.epoch)
        if self.step.reads_each_step:
            _log.info(self.step.line(self._step_records[-self._per_epoch :]))
        else:
            run.records.write(
                epoch=progress.epoch, step=run.n_steps, loss=run.last["loss"], **run.measured, **run.last["parts"],
                seconds=progress.seconds, evaluation_seconds=time.perf_counter() - started,
            )  # fmt: skip
        self.result["training_seconds"] += progress.seconds
        return run.say_epoch(self.step, self._n_epochs)

    def _record_point(self, point: str | int) -> float:
        """Save a point; measure it, also on ``val`` if it is a candidate; return its metric, BatchNorm as trained."""
        run = self.run
        run.average_statistics(self.step)
        self.candidates.save(point, self._parameters())
        size = self.result["start_effective_size"] if point == "start" else 1.0
        is_candidate = self.cooldown is None or point in ("start", self._n_epochs)  # else its rate is not yet 0
        chooses = self._settings.keep_best and is_candidate
        run.measure(self.step, (lambda: self.candidates.measure(point, size, run.evaluator)) if chooses else None)
        for key, value in run.measured.items():
            if key != run.metric:
                self.result.setdefault(f"{key}_by_point", {})[str(point)] = value
        return run.measured[run.metric]

    def _keep(self) -> None:
        """Choose the network to keep, measure and save it, and write ``result.json``."""
        run, evaluator, settings = self.run, self.run.evaluator, self._settings
        self.result |= {"steps": run.n_steps} | self.step.totals(self._step_records)
        if self.basis is not None:
            n_components = settings.search.n_components if settings.search else self.basis.n_components
            self.result["basis"] = self.basis.in_short(n_components)
        if settings.keep_best:
            epochs = [int(epoch) for epoch in self.result[f"{run.metric}_by_epoch"]]
            self.result |= self.candidates.put_chosen(evaluator, epochs)
        trained = self.result[run.metric] = evaluator.metric(settings.data.eval_split)
        again = None
        if run.reestimates:
            evaluator.reestimate()
            again = self.result[f"{run.metric}_reestimated"] = evaluator.metric(settings.data.eval_split)
        if settings.eval_split_warning is not None:
            self.result["warning"] = settings.eval_split_warning
        file = self.candidates.path("final")
        self.candidates.save("final", list(self._task.network.get_parameters()))
        average = "" if settings.keep_best else self._better_average()
        if self._ranks.is_rank_zero:
            retry(lambda: write_checksummed(run.folder / RESULT, finite(self.result)))
        run.say_end(trained, again, file, run.reestimates)
        if average:
            _log.info(average)
        if run.is_kept:
            _log.info(f"next: {shlex.join(['dimred', 'report', str(run.folder.absolute())])}")

    def _better_average(self) -> str:
        """Return a sentence on the best average of stage 1's snapshots, if ``val`` prefers it to the final network."""
        averages = [one for one in self.candidates.choice.candidates if isinstance(one.place, Path)]
        if not averages:
            return ""
        final = Choice().measure("final", 1.0, self.run.evaluator.measure_val)
        average = averages[0]
        self.result["alternative_loss_of_final"] = final.loss
        if average.loss >= final.loss:
            return ""
        figures = [
            f"loss {one.loss:.4f}, {self.run.metric} {metric_text(self.run.metric, one.metric or 0.0)}"
            for one in (average, final)
        ]
        return (
            f"on 'val' the best average of stage 1's snapshots is better than this network: {figures[0]}, against "
            f"{figures[1]}. It is {average.place}; --set keep_best=true would choose between them"
        )
