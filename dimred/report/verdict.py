"""The opening sentences of a run's page."""

from typing import Any, NamedTuple

from dimred.io.metrics_file import ACCURACY, metric_text
from dimred.report.record import StageTwoRecord, passes_of

_LEVEL = 0.00005  # accuracies that differ by less are shown equal


class Measured(NamedTuple):
    """Measurements that are in no file of the run.

    Attributes:
        split: the split that the metric is reported on.
        reestimated: whether BatchNorm statistics are re-estimated for it; false for a network without BatchNorm.
        last: metric of stage 1's last weights, with such statistics; None if it could not be measured.
    """

    split: str
    reestimated: bool
    last: float | None = None


def start_in_words(result: dict[str, Any]) -> str:
    """Name the weights from which stage 2 began."""
    began = str(result.get("started_from", result["start"]))
    return {"last": "the last weights of stage 1", "mean": "the mean of the snapshots"}.get(began, began)


def kept_in_words(result: dict[str, Any]) -> str:
    """Name the candidate that stage 2 kept."""
    kept = str(result.get("kept", "its end"))
    points = {"start": "its start", "average": "the best average of the snapshots"}
    return f"epoch {kept}" if kept.isdecimal() else points.get(kept, kept)


def run_verdict(run: StageTwoRecord, measured: Measured) -> list[str]:
    """Write which network to use, its metric, its gains over others, and its cost."""
    result, ours, metric = run.result, run.kept_metric, run.metric
    statistics = ", BatchNorm re-estimated" if measured.reestimated else ""
    others = {"the last weights of stage 1 (": measured.last}
    if result.get("start_effective_size", 1.0) > 1 or result["start"] == "mean":
        others[f"the average that it started from ({start_in_words(result)}, "] = run.start_metric
    if f"{metric}_average" in result:
        others[f"the best average of the snapshots ({result['average_of']}, "] = result[f"{metric}_average"]
    gains = [
        f"{gain_text(ours - other) if metric == ACCURACY else 'against'} {what}{metric_text(metric, other)})"
        for what, other in others.items()
        if other is not None
    ]
    named = "" if metric == ACCURACY else f"{metric} "
    said = [f"Use {run.final_weights}: {named}{metric_text(metric, ours)} on {measured.split}{statistics}."]
    if gains:
        said.append(f"That is {' and '.join(gains)}.")
    of_stage_1 = f" after the {run.stage_1_epochs} of stage 1" if run.stage_1_epochs else ""
    said.append(f"Stage 2 cost {passes_of(result):.1f} passes{of_stage_1}, and {duration(run.seconds)}.")
    if result.get("kept") in ("start", "average"):
        said.append(
            f"The val split preferred {kept_in_words(result)} to every epoch of stage 2, and none of these is used."
        )
    return said


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, or hours and minutes."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def gain_text(difference: float, spread: float | None = None) -> str:
    """Format the difference of two accuracies (fractions) in points, with a spread if there is one."""
    if abs(difference) < _LEVEL:
        return "level with"
    error = "" if spread is None else f" ± {100 * spread:.2f}"
    return f"{100 * abs(difference):.2f}{error} points {'above' if difference > 0 else 'below'}"
