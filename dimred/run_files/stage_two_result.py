"""The result of a stage 2, which is kept in ``result.json`` and, until that is written, in the saved states."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from dimred.errors import ConfigError
from dimred.io.checksums import read_checksummed, write_checksummed
from dimred.io.file_format import RESULT_OF_STAGE_2
from dimred.run_files.metric import AS_TRAINED, REESTIMATED, Figures, Metric
from dimred.run_files.metrics_file import finite

FORWARD = 1 / 3  # of the cost of a forward and a backward pass
# Points that are not epochs.
START = "start"
FINAL = "final"
AVERAGE = "average"


@dataclass
class ChoiceResult:
    """The outcome of a choice on ``val``, with the measurements of all candidates.

    Attributes:
        name: name of the candidate with the lowest loss.
        effective_size: how many equally weighted snapshots it is worth.
        candidates: name, size and measurements of each; see ``Choice.result``.
        n_measured: number of networks that were measured for this choice.
        forward_passes: the cost of measuring them, in forward passes over the training split.
        seconds: the wall seconds that measuring took.
    """

    name: str
    effective_size: float
    candidates: list[dict[str, Any]]
    n_measured: int
    forward_passes: float
    seconds: float


@dataclass
class MetricResult:
    """The values of a metric.

    Attributes:
        metric: the metric.
        by_point: ``start``, the number of an epoch, ``average`` (the best of the snapshots, where it is a candidate) or
            ``final`` -> kind of figure (see ``dimred.run_files.metric``) -> value.
    """

    metric: Metric
    by_point: dict[str, dict[str, float]] = field(default_factory=dict)

    def at(self, point: str) -> float:
        """Return the value at a point, with re-estimated BatchNorm statistics if that was measured."""
        values = self.by_point[point]
        return values.get(REESTIMATED, values.get(AS_TRAINED, float("nan")))


@dataclass
class StageTwoResult:
    """The result of a stage 2: its cost, its measurements and its choices.

    Attributes:
        epochs: number of epochs, a fraction if the search ended within one.
        sources: DATA, WEIGHTS and the basis as paths; None for what was not given.
        digests: the digest of each pin of the run, such as ``WEIGHTS`` and ``DATA/train``, see ``Pin`` of
            ``dimred.runs``.
        metrics: the values of each metric, the main one first.
        choices: ``average`` (the best average) or ``kept`` (the weights kept) -> a cooldown's choice; empty after a
            search.
        cooldown: see ``Cooldown.summary`` of ``dimred.stages``; None after a search.
        basis: see ``SubspaceBasis.in_short``; None after a cooldown.
        steps: number of steps.
        totals: totals over a method's steps; ``passes`` counts their ``n_forward`` and ``n_backward``. For a search,
            see ``totals`` of ``dimred.search_step``. Empty if each step makes one forward and one backward pass.
        training_seconds: wall seconds of the steps.
        stopped: why the search ended early; None if it did not.
        warning: a warning about the figures; None if there is nothing to warn of.
    """

    epochs: float
    sources: dict[str, str | None]
    metrics: list[MetricResult]
    digests: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, ChoiceResult] = field(default_factory=dict)
    cooldown: dict[str, Any] | None = None
    basis: dict[str, Any] | None = None
    steps: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    training_seconds: float = 0.0
    stopped: str | None = None
    warning: str | None = None

    @property
    def main(self) -> MetricResult:
        """Return the values of the main metric."""
        return self.metrics[0]

    @property
    def by_epoch(self) -> dict[int, dict[str, float]]:
        """Return epoch -> kind of figure -> value of the main metric."""
        return {int(point): values for point, values in self.main.by_point.items() if point.isdecimal()}

    @property
    def kept(self) -> str | None:
        """Return the name of the candidate that was kept; None if there was nothing to choose."""
        return self.choices["kept"].name if "kept" in self.choices else None

    @property
    def is_reestimated(self) -> bool:
        """Return whether every point was also measured with re-estimated BatchNorm statistics."""
        return all(REESTIMATED in values for values in self.main.by_point.values())

    def put(self, point: str | int, figures: Figures) -> None:
        """Add the figures that were measured at a point of ``MetricResult.by_point``."""
        for measured in self.metrics:
            measured.by_point[str(point)] = dict(figures[measured.metric.name])

    def training_passes(self, n_epochs: float) -> float:
        """Return the cost of the first ``n_epochs``, in the unit of ``passes`` and without choices."""
        if not self.totals:  # the steps were ordinary ones
            return float(n_epochs)
        passes = FORWARD * self.totals["n_forward"] + (1 - FORWARD) * self.totals["n_backward"]
        return float(n_epochs * passes / self.steps)

    def choosing_passes(self, *choices: str) -> float:
        """Return the cost of the choices with these names, in the unit of ``passes``; those not made cost nothing."""
        return FORWARD * sum(self.choices[what].forward_passes for what in choices if what in self.choices)

    @property
    def passes(self) -> float:
        """Return the cost of stage 2's network in epochs of ordinary training, choices included.

        An epoch is a forward and a backward pass. A forward pass alone, as for a trial of the line search or to measure
        a candidate, counts a third.
        """
        return self.training_passes(self.epochs) + self.choosing_passes(*self.choices)

    @property
    def seconds(self) -> float:
        """Return the wall seconds of the steps and choices that ``passes`` counts."""
        return self.training_seconds + sum(choice.seconds for choice in self.choices.values())

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values, for ``from_json``; numbers that are not finite become None."""
        return finite(asdict(self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild a result from the values that ``as_json`` returned."""
        metrics = [MetricResult(Metric(**stored["metric"]), stored["by_point"]) for stored in values["metrics"]]
        choices = {name: ChoiceResult(**choice) for name, choice in values["choices"].items()}
        return cls(**{**values, "metrics": metrics, "choices": choices})

    def write(self, path: Path) -> None:
        """Write the result to a JSON file with a checksum, whole or not at all.

        Raises:
            OSError: the file can't be written.
        """
        write_checksummed(path, RESULT_OF_STAGE_2, self.as_json())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a result from a file that ``write`` wrote.

        Raises:
            ConfigError: the file can't be read, is damaged, or is of another version.
        """
        try:
            values = read_checksummed(path, RESULT_OF_STAGE_2)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} can't be used ({error}); stage 2's --resume writes it again") from None
        return cls.from_json(values)
