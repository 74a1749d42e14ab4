"""Measure a run's network, and log the figures."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dimred.run_files.metric import AS_TRAINED, EMA, REESTIMATED, Figures
from dimred.runs.task import Task
from dimred.train_step.optimizer_state import weights_to_use
from dimred.train_step.protocol import Step
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.parameters import preserved

_log = logging.getLogger(__name__)


class RunFigures:
    """The last figures of a run's network on ``data.eval_split``, for each metric and kind.

    Args:
        task: the stage's task.

    Attributes:
        metrics: the metrics, the main one first.
        reestimates: whether the network is also measured with re-estimated BatchNorm statistics.
        values: name of the metric -> kind -> value; empty if nothing was measured.
    """

    def __init__(self, task: Task[Any]) -> None:
        config = task.config
        self._task = task
        self._split = config.data.eval_split
        self.metrics = task.metrics
        self.reestimates = config.reestimate_batch_norm and task.evaluator.has_batch_norm
        self.values: Figures = {}

    def measure(self, step: Step, choose: Callable[[], object] = lambda: None) -> None:
        """Measure the network as trained, with re-estimated BatchNorm statistics, and with the EMA's weights.

        Schedule-free training is measured at its averaged point. The measurement leaves the training unchanged.

        Args:
            step: the step with the optimizer and the EMA.
            choose: measures on ``val``; called while BatchNorm has the statistics that would be kept with the network.
        """
        with weights_to_use(step.optimizer), preserved(moving_statistics(self._task.network)):
            self.measure_final()
            choose()
        if step.ema is not None:
            with step.ema.in_place():
                self._note(EMA)

    def measure_final(self) -> None:
        """Measure the network as it is, then re-estimate its BatchNorm statistics, keep them, and measure again.

        Without ``reestimates`` there is no second measurement, and the network stays as it is.
        """
        self.values = {}
        self._note(AS_TRAINED)
        if self.reestimates:
            self._task.evaluator.reestimate()
            self._note(REESTIMATED)

    def of_average(self) -> Figures:
        """Return the network's figures after the caller has re-estimated its statistics; ``values`` does not change."""
        kind = REESTIMATED if self._task.evaluator.has_batch_norm else AS_TRAINED
        values = self._task.evaluator.metrics(self._split)
        return {metric.name: {kind: value} for metric, value in zip(self.metrics, values, strict=True)}

    def _note(self, kind: str) -> None:
        for metric, value in zip(self.metrics, self._task.evaluator.metrics(self._split), strict=True):
            self.values.setdefault(metric.name, {})[kind] = value

    def text(self, decimals: int) -> str:
        """Format the metrics by ``Metric.text``, the re-estimated ones in brackets; "" if nothing was measured."""
        texts = []
        for metric in self.metrics:
            values = self.values.get(metric.name)
            if values is not None:
                again = f" ({metric.text(values[REESTIMATED], decimals)} re-estimated)" if REESTIMATED in values else ""
                name = "" if metric is self.metrics[0] else f"{metric.name} "
                texts.append(f"{name}{metric.text(values[AS_TRAINED], decimals)}{again}")
        return ", ".join(texts)

    def log_ema(self) -> None:
        """Log the metrics of the EMA's weights, if they were measured."""
        for metric in self.metrics:
            value = self.values.get(metric.name, {}).get(EMA)
            if value is not None:
                _log.info(f"with the average of the weights (EMA): {metric.name} {metric.text(value)}")

    def log_end(self, network: Path, is_reestimated: bool, is_kept: bool) -> None:
        """Log how good the network is, and where its file is.

        Programs look for ``{'Accuracy': 0.88}``, the main metric of that file.

        Args:
            network: the file to use.
            is_reestimated: whether the file has the re-estimated statistics.
            is_kept: whether the file is for use; otherwise only the line for programs is logged.
        """
        main = self.metrics[0]
        has_batch_norm = self._task.evaluator.has_batch_norm
        values = self.values.get(main.name, {})
        value = values.get(REESTIMATED if is_reestimated else AS_TRAINED, values.get(AS_TRAINED))
        _log.info(str({main.name.capitalize() if main.is_fraction else main.name: value}))
        if not is_kept:
            return
        for metric in self.metrics:
            values = self.values.get(metric.name, {})
            texts = [
                metric.text(values[kind])
                + (f" with BatchNorm statistics {words}" if has_batch_norm else "")
                + (" (as in the file)" if REESTIMATED in values and is_reestimated == (kind == REESTIMATED) else "")
                for kind, words in ((AS_TRAINED, "as trained"), (REESTIMATED, "re-estimated"))
                if kind in values
            ]
            if texts:
                _log.info(f"{metric.name} on {self._split!r}: {', '.join(texts)}")
        warning = self._task.config.eval_split_warning()
        if warning is not None:
            _log.info(warning)
        if self._task.ranks.is_rank_zero:  # only rank 0 has the file
            _log.info(f"network: {network}")
