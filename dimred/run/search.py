"""Stage 2's run: where it starts, what it records and saves beside the steps, and what it keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, nn

from dimred.config import StageTwoConfig
from dimred.console import say
from dimred.data.batches import Batches
from dimred.errors import ConfigError, NothingAcceptedError
from dimred.evaluate.checkpoint_selection import CheckpointSelection
from dimred.evaluate.evaluator import OnSplits
from dimred.evaluate.initial_weights import InitialWeights
from dimred.evaluate.scores import Scores
from dimred.evaluate.selection import Selection
from dimred.files.atomic import retry
from dimred.files.checksummed_json import write_checksummed
from dimred.files.metrics_file import metric_text, read_metrics
from dimred.files.run_names import RESULT, STAGE_2_CHECKPOINTS, SUBSPACE_PATH
from dimred.launch.channel import tell_position
from dimred.run.lines import epoch_line, loss_text, metric_line, published_epoch_line, say_end
from dimred.run.loop import EpochLoop, Observer, Place
from dimred.run.metrics import finite
from dimred.run.session import Session
from dimred.run.training import own_statistics, parameters_to_save
from dimred.search.result import (
    SearchResult,
    is_state_of,
    search_line,
    state_arrays,
    state_from_arrays,
    telemetry,
    totals,
)
from dimred.search.step import SubspaceTrainStep
from dimred.subspace.basis import SubspaceBasis
from dimred.subspace.path import make_path
from dimred.train_step.network_state import moving_statistics
from dimred.train_step.optimizers import last_rate, state_parameters
from dimred.vectors.parameters import preserved, to_arrays
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries

_SEARCH = "search:"  # begins the names of the search's own arrays in a state


class Search(Observer):
    """The search in the subspace of stage 1's snapshots.

    Args:
        session: of the run.
        settings: the configuration.
        network: in ``step``; has the weights of WEIGHTS.
        step: stage 2's step.
        images: by split, those that this run reads.
        scores: what the network is measured by.
        basis: on rank 0; None elsewhere.
        sources: the files that the run was made from, for ``result.json``.
        taken_over: what the continued residual has from stage 1, for ``result.json``; empty for another one.
        first_order: see ``EpochLoop``.

    Attributes:
        result: what ``result.json`` will hold.
        records: one for each step, as in ``metrics.jsonl``.
    """

    def __init__(
        self,
        session: Session,
        settings: StageTwoConfig,
        network: nn.Cell,
        step: SubspaceTrainStep,
        images: Mapping[str, Batches],
        scores: Scores,
        basis: SubspaceBasis | None,
        sources: Mapping[str, Path | None],
        taken_over: Mapping[str, Any],
        first_order: int,
    ):
        self.session, self.settings, self.ranks = session, settings, session.ranks
        self.network, self.step, self.basis = network, step, basis
        searched = images[settings.search_split]
        self.loop = EpochLoop(
            "stage 2", step, searched, seed=settings.seed, n_epochs=settings.n_epochs, first_order=first_order,
            save_every_steps=settings.save_every_steps, ranks=session.ranks, signals=session.signals,
        )  # fmt: skip
        self.per_epoch, self.statistics = searched.steps_per_epoch, own_statistics(network, step)
        self.place = Place(epoch=0)  # 0: the start is not recorded yet
        self.snapshots: CheckpointSeries | None = None  # on rank 0, of a run that begins
        self.on = OnSplits(
            network, images, scores, seed=settings.seed, n_batches=settings.reestimate_batches, ranks=session.ranks
        )
        self.reestimates = settings.reestimate_batch_norm and self.on.has_batch_norm
        self.metric = settings.metric_name
        self.points = CheckpointSelection(
            session.out / STAGE_2_CHECKPOINTS, settings.model.file_prefix, self.per_epoch, session.ranks,
            Selection(reestimates=self.reestimates),
        )  # fmt: skip
        self.records: list[dict[str, Any]] = []
        self.result: dict[str, Any] = {
            "start": settings.start,
            "epochs": settings.n_epochs,
            "residual": {"kind": settings.residual, **taken_over},
            "metric": self.metric,
            f"{self.metric}_by_epoch": {},
            "search_seconds": 0.0,
            "sources": {name: path and str(path.resolve()) for name, path in sources.items()},
        }
        session.identity["DATA"] = f"{searched.n_images} images in {len(searched.classes)} classes"
        session.identity["PCA_MAT"] = basis.digest if basis else None
        if taken_over:
            session.identity["WEIGHTS"] = "{updates} updates by {optimizer}, at the rate {rate:g}".format_map(
                taken_over
            )

    def restore(self, allowed: list[str]) -> bool:
        """Resume the run in the folder; whether there is one.

        Raises:
            ConfigError: what was allowed to change does not go with what the run has done.
        """
        found = self.session.restore(parameters_to_save(self.step), self.place, self.per_epoch, allowed)
        if found is None:
            return False
        if self.settings.n_epochs < self.place.epoch:
            raise ConfigError(
                f"epochs is {self.settings.n_epochs}, but the run has begun {self.place.epoch}; --set epochs to that "
                "or more"
            )
        if found.progress["result"]["metric"] != self.metric:
            raise ConfigError(
                f"metric is {self.metric}, but the run has measured {found.progress['result']['metric']}; a metric "
                "can't change on the way: leave it, or begin in a new folder"
            )
        searched = {
            name.removeprefix(_SEARCH): value for name, value in found.arrays.items() if name.startswith(_SEARCH)
        }
        if not is_state_of(searched, self.step.state):
            raise ConfigError(
                "search and n_components can't change on the way, because H or the momentum would not fit; leave them, "
                "or begin in a new folder"
            )
        self.step.state = state_from_arrays(searched, self.step.state)
        configured = {key: self.result[key] for key in ("epochs", "residual")}  # which may have been allowed to change
        self.result |= found.progress["result"] | configured
        widths = {point: self.result.get(f"{point}_width", 1.0) for point in ("start", "average")}
        self.points.restore(found.arrays, widths)
        return True

    def _parameters(self) -> list[Parameter]:
        """The network's, and those of the step's parts that remember something: the EMA and the loss scale."""
        others = [] if self.step.optimizer is None else state_parameters(self.step.optimizer)
        known = {id(parameter) for parameter in others}
        return [parameter for parameter in parameters_to_save(self.step) if id(parameter) not in known]

    def put_start(self, snapshots: CheckpointSeries | None) -> None:
        """Put the network where the search begins; rank 0 has the snapshots, if there are any."""
        start, self.snapshots = InitialWeights(self.network, self.ranks, self.on), snapshots
        self.result |= {"start_width": 1.0} | start.put(self.settings.start, self.basis, snapshots)
        if self.step.ema is not None:
            self.step.ema.restart()
            self.result[f"ema_{self.metric}_by_point"] = {}

    def _add_average(self) -> None:
        """Make the best average of the snapshots a point that may be kept; the network stays as it is."""
        with preserved(list(self.network.get_parameters())):
            if found := InitialWeights(self.network, self.ranks, self.on).put_average(self.snapshots):
                self.result |= found
                if found["average_of"] == "last":  # no average is better than the start
                    return
                self.points.save("average", self._parameters())
                self.points.selection.measure("average", found["average_width"], self._val_losses)
                self.result[f"{self.metric}_average"] = self._evaluate()

    def run(self) -> None:
        """Search the epochs that are left, keep the best point, and write the result."""
        if self.step.optimizer is not None:
            residual = self.result["residual"]
            say(
                f"residual: {residual['optimizer']} at {residual['factor']:.3g} of stage 1's rate "
                f"{residual['rate']:.4g}, {self.settings.residual_schedule} to 0 ({residual['taken_from']})"
            )
        self.session.write_configuration()
        with self.session.open_metrics() as self.metrics:
            self.records = read_metrics(self.session.metrics_file)
            self.ranks.run_on_rank_zero(lambda: self.session.states.forget_after(len(self.records)))
            if self.place.epoch == 0:
                if self.settings.adds_average:
                    self._add_average()
                self.result[f"{self.metric}_start"] = start = self._record_point("start")
                say(f"stage 2 starts from {self.settings.start!r}: {self.metric} {metric_text(self.metric, start)}")
                self.place.next_epoch()
                self.save(self.place)
            try:
                self.loop.run(self.place, self)
            except NothingAcceptedError as stop:
                self.result |= {"stopped": str(stop), "epochs": len(self.records) / self.per_epoch}
                self.result["search_seconds"] += self.place.seconds
                say(f"the search stops in epoch {self.place.epoch}: {stop}")
        self._finish()

    def after_step(self, result: SearchResult, place: Place, n_samples: int) -> str:
        """Record the step."""
        step = len(self.records) + 1
        self.records.append(self.metrics.write(epoch=place.epoch, step=step, **telemetry(result)))
        return self._status()

    def after_epoch(self, place: Place) -> str:
        """Evaluate and save the point that was reached."""
        loss = self.records[-1]["loss_after"]
        say(published_epoch_line(place.epoch, self.per_epoch, loss))
        if self.settings.n_components > 0:
            say(search_line(self.records[-self.per_epoch :]))
        self.result[f"{self.metric}_by_epoch"][str(place.epoch)] = value = self._record_point(str(place.epoch))
        measured = f"{self.settings.data.eval_split} {metric_text(self.metric, value, 1)}"
        rate = None if self.step.optimizer is None else last_rate(self.step.optimizer)
        of_all = f"{place.epoch}/{self.settings.n_epochs}"
        say(epoch_line(of_all, self.per_epoch, loss, rate, measured, place.seconds))
        self.result["search_seconds"] += place.seconds
        if not self.settings.leaves_subspace:
            self.ranks.run_on_rank_zero(lambda: retry(self._save_path))
        return self._status()

    def _status(self) -> str:
        """The last step's loss, and the metric that was measured last."""
        name = self.metric
        value = [self.result[f"{name}_start"], *self.result[f"{name}_by_epoch"].values()][-1]
        return f"loss {loss_text(self.records[-1]['loss_after'])}, {name} {metric_text(name, value, 1)}"

    def _record_point(self, point: str) -> float:
        """Save a point, measure it on ``val``, which may choose it; return its metric on the evaluation split."""
        self.ranks.all_reduce_mean(self.statistics)
        self.points.save(point, self._parameters())
        if self.settings.keep_best:
            width = self.result["start_width"] if point == "start" else 1.0
            self.points.selection.measure(point, width, self._val_losses)
        if self.step.ema is not None:
            with self.step.ema.in_place():
                self.result[f"ema_{self.metric}_by_point"][point] = self._evaluate()
        return self._evaluate()

    def save(self, place: Place) -> None:
        """Save the state to resume from."""
        self.ranks.all_reduce_mean(self.statistics)
        arrays = to_arrays(parameters_to_save(self.step))
        arrays |= {_SEARCH + name: value for name, value in state_arrays(self.step.state).items()}
        arrays |= self.points.state_arrays()
        self.session.save(len(self.records), place, arrays, self.metrics, result=self.result)

    def _save_path(self) -> None:
        """Save k numbers for each step, from which ``dimred rebuild`` makes its network."""
        if self.basis is None:
            return
        start = WeightLayout.from_network(self.network).flatten(self.points.read("start"))
        steps = [np.array(record["subspace_step"]) for record in self.records]
        make_path(steps, start, self.basis).save(self.points.folder / SUBSPACE_PATH)

    def _finish(self) -> None:
        """Keep a network, measure it, and write ``result.json``."""
        self.result |= totals(self.records)
        if self.settings.keep_best:
            self.result |= self.points.put_best(self.network, self.on.put, self.on.val_losses_of)
        self.result[self.metric] = value = self._evaluate()
        how = ", BatchNorm statistics as they are" if self.on.has_batch_norm else ""
        if self.reestimates:
            self.on.reestimate()
            self.result[f"{self.metric}_reestimated"] = value = self._evaluate()
            how = ", BatchNorm statistics re-estimated"
        self.points.save("final", list(self.network.get_parameters()))
        if self.ranks.is_rank_zero:
            self.result["basis"] = self.basis and self.basis.in_short(self.settings.n_components)
            retry(lambda: write_checksummed(self.session.out / RESULT, finite(self.result)))
        following = ["dimred", "report", str(self.session.out)]
        say(metric_line(self.metric, self.result[self.metric]))
        say_end(self.metric, self.settings.data.eval_split, value, how, self.points.path("final"), following)

    def _evaluate(self) -> float:
        tell_position("evaluating after", len(self.records))
        return self.on.metric(self.settings.data.eval_split)

    def _val_losses(self) -> np.ndarray:
        """With the BatchNorm statistics that the point would be kept with; the search goes on with its own."""
        with preserved(moving_statistics(self.network)):
            if self.reestimates:
                self.on.reestimate()
            return self.on.losses("val")
