"""Stage 2's run: stage 1's training goes on while its rate is brought to 0, and ``val`` chooses the network to keep."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore import Parameter

from dimred.averaging.choice import Candidate, Selection
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageTwoConfig
from dimred.data.batches import STAGE_2_EPOCHS_FROM
from dimred.errors import ConfigError
from dimred.evaluation.averages import SnapshotAverages, choose_average
from dimred.io.atomic import retry
from dimred.io.checksums import write_checksummed
from dimred.io.metrics_file import metric_text
from dimred.io.run_names import RESULT, STAGE_2_CHECKPOINTS
from dimred.stages.candidates import Points, put_file
from dimred.stages.loop import Place
from dimred.stages.parent import Handover
from dimred.stages.records import finite
from dimred.stages.run import StageRun
from dimred.stages.states import RunState
from dimred.train_step.optimizers import state_parameters
from dimred.train_step.protocol import parameters_to_save
from dimred.vectors.parameters import preserved, to_arrays

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Finish(StageRun):
    """Stage 2 from its start to the network that is kept.

    The candidates are the start, the best average of stage 1's snapshots (unless that was a choice for the start), the
    last epoch, and the mean of the epochs; without a cooldown they are the start, every epoch, and the mean.

    Attributes:
        network: the network, which has the weights of WEIGHTS at first.
        step: stage 1's step with a rate that falls to 0, or the step of a search.
        sources: the files that the run was made from, for ``result.json``.
        handover: what was taken over from stage 1; None without a cooldown.
        result: what ``result.json`` will contain.
    """

    settings: StageTwoConfig
    sources: Mapping[str, Path | None]
    handover: Handover | None

    name = "stage 2"
    first_epoch = 0
    first_order = STAGE_2_EPOCHS_FROM

    def __post_init__(self) -> None:
        super().__post_init__()
        session, settings, handover = self.session, self.settings, self.handover
        self.snapshots: CheckpointSeries | None = None  # on rank 0, of a run that begins
        self.points = Points(
            session.out / STAGE_2_CHECKPOINTS, settings.model.file_prefix, self.per_epoch, session.ranks,
            self.selection(),
        )  # fmt: skip
        self.result: dict[str, Any] = {
            "start": settings.start,
            "epochs": settings.n_epochs,
            "cooldown": handover and handover.summary(),
            "metric": self.metric,
            f"{self.metric}_by_epoch": {},
            "training_seconds": 0.0,
            "sources": {name: path and str(path.resolve()) for name, path in self.sources.items()},
            "basis": None,
        }
        if handover is not None:
            by = f"{handover.updates} updates by {handover.optimizer.name}"
            session.identity["WEIGHTS"] = f"{by}, at the rate {handover.rate:g}"

    def selection(self) -> Selection:
        """Return an empty selection that knows the cost of a measurement."""
        passes_each = self.on.passes_each if self.settings.uses_val else 0.0
        return Selection(passes_each=passes_each, metric=self.metric)

    def restore(self, allowed: list[str]) -> bool:
        """Resume the run in the folder, if there is one; return whether there is.

        Raises:
            ConfigError: a key has changed that may not, see ``restore_state``; or the metric has changed.
        """
        found = self.restore_state(allowed)
        if found is not None:
            self.take_up(found)
        return found is not None

    def take_up(self, found: RunState) -> None:
        """Restore from a state what stage 2 has measured and chosen.

        Raises:
            ConfigError: the metric has changed.
        """
        if found.progress["result"]["metric"] != self.metric:
            raise ConfigError(
                f"metric is {self.metric}, but the run has measured {found.progress['result']['metric']}; a metric "
                "can't change on the way: leave it, or begin in a new folder"
            )
        configured = {key: self.result[key] for key in ("epochs", "cooldown")}  # which may have been allowed to change
        self.result |= found.progress["result"] | configured
        self.points.restore(found.arrays, found.progress["points"])

    def put_start(self, snapshots: CheckpointSeries | None) -> None:
        """Set the network to the weights that stage 2 begins with.

        Args:
            snapshots: snapshots of stage 1, on rank 0; None elsewhere, and if there are none.
        """
        self.snapshots = snapshots
        self.result.setdefault("start_effective_size", 1.0)
        if self.settings.start == "best":
            self._put_chosen("start", "started_from")
        elif self.settings.starts_from_file:
            start = self.settings.start
            put_file(list(self.network.get_parameters()), Path(start), f"start {start!r}", self.ranks)
        if self.step.ema is not None and self.settings.start != "last":
            self.step.ema.restart()

    def _put_chosen(self, what: str, chosen_as: str) -> Candidate:
        """Put the best of the last weights and the averages of the snapshots into the network."""
        selection = self.selection()
        averages = SnapshotAverages(self.snapshots, self.on.layout, self.ranks)
        last = self.on.layout.flatten(to_arrays(self.network.trainable_params()))
        chosen = choose_average(averages, self.on.on_val_of, last, selection)
        self.on.put(chosen.weights)
        selection.tell(what)
        self.result |= {chosen_as: chosen.candidate.name, f"{what}_effective_size": chosen.candidate.effective_size}
        self.result |= selection.summary(what)
        return chosen.candidate

    def _add_average(self) -> None:
        """Add the best average of the snapshots to the candidates; the network stays as it is."""
        if not self.ranks.any(self.snapshots is not None and len(self.snapshots) > 0):
            return
        with preserved(list(self.network.get_parameters())):
            chosen = self._put_chosen("average", "average_of")
            if chosen.name != "last":  # an average is better than the start
                self.points.save("average", self._parameters())
                self.points.selection.add("average", chosen)
                self.result[f"{self.metric}_average"] = self.on.metric(self.settings.data.eval_split)

    def _parameters(self) -> list[Parameter]:
        """Return the network's parameters, and those of the step's parts: the EMA and the loss scale."""
        known = {id(parameter) for parameter in state_parameters(self.step.optimizer)}
        return [parameter for parameter in parameters_to_save(self.step) if id(parameter) not in known]

    def run(self) -> None:
        """Train the remaining epochs, keep the best candidate, and write the result."""
        if (cooldown := self.result["cooldown"]) is not None:
            _log.info(
                f"cooldown: {cooldown['optimizer']} from {cooldown['factor']:.3g} of stage 1's rate "
                f"{cooldown['rate']:.4g}, {cooldown['schedule']} to 0 ({cooldown['taken_from']})"
            )
        self.session.write_configuration()
        self.ranks.run_on_rank_zero(lambda: (self.session.out / RESULT).unlink(missing_ok=True))  # of an earlier end
        with self.session.open_metrics(self.metrics_length) as self.metrics:
            self.ranks.run_on_rank_zero(lambda: self.session.states.forget_after(self.n_steps))
            if self.place.epoch == 0:
                if self.settings.adds_average:
                    self._add_average()
                self.result[f"{self.metric}_start"] = self.record_point("start")
                _log.info(f"stage 2 starts from {self.settings.start!r}: {self.metric} {self.measured_text(2)}")
                self.place.next_epoch()
                self.save(self.place)
            self.train()
        self._keep()

    def train(self) -> None:
        """Train the remaining epochs."""
        self.loop.run(self.place, self)

    def save(self, place: Place) -> None:
        """Save the state to resume from."""
        arrays = self.arrays_to_save() | self.points.state_arrays()
        self.save_state(place, arrays, result=self.result, points=self.points.state_values())

    def after_epoch(self, place: Place) -> str:
        """Save and measure the point that was reached, record the epoch, and return a status for the progress bar."""
        started = time.perf_counter()
        self.result[f"{self.metric}_by_epoch"][str(place.epoch)] = self.record_point(str(place.epoch))
        self.write_epoch(place, evaluation_seconds=time.perf_counter() - started)
        self.result["training_seconds"] += place.seconds
        return self.say_epoch(place)

    def write_epoch(self, place: Place, evaluation_seconds: float) -> None:
        """Write the record of an epoch."""
        self.metrics.write(
            epoch=place.epoch, step=self.n_steps, loss=self.last["loss"], **self.measured, **self.last["parts"],
            seconds=place.seconds, evaluation_seconds=evaluation_seconds,
        )  # fmt: skip

    def record_point(self, point: str) -> float:
        """Save a point; measure it, also on ``val`` if it is a candidate; return its metric, BatchNorm as trained."""
        self.ranks.all_reduce_mean(self.statistics)
        self.points.save(point, self._parameters())
        size = self.result["start_effective_size"] if point == "start" else 1.0
        is_candidate = self.handover is None or point in ("start", str(self.n_epochs))  # else its rate is not yet 0
        chooses = self.settings.keep_best and is_candidate
        self.measure((lambda: self.points.selection.measure(point, size, self.on.on_val)) if chooses else None)
        for key, value in self.measured.items():
            if key != self.metric:
                self.result.setdefault(f"{key}_by_point", {})[point] = value
        return self.measured[self.metric]

    def totals(self) -> dict[str, Any]:
        """Return the totals of the run, for ``result.json``."""
        return {"steps": self.n_steps}

    def _keep(self) -> None:
        """Choose the network to keep, measure and save it, and write ``result.json``."""
        self.result |= self.totals()
        if self.settings.keep_best:
            epochs = [int(epoch) for epoch in self.result[f"{self.metric}_by_epoch"]]
            self.result |= self.points.put_chosen(self.on, epochs)
        split, how = self.settings.data.eval_split, "as they are"
        self.result[self.metric] = value = self.on.metric(split)
        if self.reestimates:
            self.on.reestimate()
            self.result[f"{self.metric}_reestimated"] = value = self.on.metric(split)
            how = "re-estimated"
        if self.settings.eval_split_warning is not None:
            self.result["warning"] = self.settings.eval_split_warning
        self.points.save("final", list(self.network.get_parameters()))
        if self.ranks.is_rank_zero:
            retry(lambda: write_checksummed(self.session.out / RESULT, finite(self.result)))
        report = ["dimred", "report", str(self.session.out)]
        text = metric_text(self.metric, value)
        self.say_end(self.result[self.metric], how, text, self.points.path("final"), report)
