"""Sum up in a few sentences what a run achieved, and name what it made."""

from collections.abc import Mapping
from typing import Any

from dimred.io.metrics_file import ACCURACY, metric_text
from dimred.report.record import StageTwoRecord, passes_of, seconds_of


def in_words(point: str) -> str:
    """Name one of stage 2's points in words: its start, an epoch, or an average."""
    words = {
        "start": "its start", "average": "the best average of the snapshots",
        "last": "the last weights of stage 1", "mean": "the mean of the snapshots",
    }  # fmt: skip
    return f"epoch {point}" if point.isdecimal() else words.get(point, point)


def start_in_words(result: Mapping[str, Any]) -> str:
    """Name the weights that stage 2 began with."""
    return in_words(result.get("started_from", result["start"]))


def kept_in_words(result: Mapping[str, Any]) -> str:
    """Name the weights that stage 2 kept."""
    return in_words(result.get("kept", "its end"))


def run_verdict(run: StageTwoRecord, split: str, last: float | None) -> list[str]:
    """Write which network to use, its metric, its gains over others, and its cost; arguments as in ``write_report``."""
    result, ours, metric = run.result, run.kept_metric, run.metric
    statistics = ", BatchNorm re-estimated" if f"{metric}_reestimated" in result else ""
    others = {"the last weights of stage 1 (": last}
    if result["start_effective_size"] > 1:
        others[f"the average that it started from ({start_in_words(result)}, "] = run.start_metric
    if f"{metric}_average" in result:
        others[f"the best average of the snapshots ({result['average_of']}, "] = result[f"{metric}_average"]
    gains = [
        f"{gain_text(ours - other) if metric == ACCURACY else 'against'} {what}{metric_text(metric, other)})"
        for what, other in others.items()
        if other is not None
    ]
    named = "" if metric == ACCURACY else f"{metric} "
    said = [f"Use {run.final_weights}: {named}{metric_text(metric, ours)} on {split}{statistics}."]
    if gains:
        said.append(f"That is {' and '.join(gains)}.")
    of_stage_1 = f" after the {run.stage_1_epochs} of stage 1" if run.stage_1_epochs else ""
    said.append(f"Stage 2 cost {passes_of(result):.1f} passes{of_stage_1}, and {duration(seconds_of(result))}.")
    if result.get("kept") in ("start", "average"):
        kept = kept_in_words(result)
        said.append(f"The val split preferred {kept} to every epoch of stage 2, so no epoch of stage 2 is used.")
    return said


def duration(seconds: float) -> str:
    """Format a number of seconds as seconds, minutes, or hours and minutes."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def gain_text(difference: float, spread: float | None = None) -> str:
    """Format the difference of two accuracies (fractions) in points, with a spread if there is one."""
    if abs(difference) < 0.00005:  # they are shown equal
        return "level with"
    error = "" if spread is None else f" ± {100 * spread:.2f}"
    return f"{100 * abs(difference):.2f}{error} points {'above' if difference > 0 else 'below'}"
