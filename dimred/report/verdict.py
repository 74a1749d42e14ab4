"""What a person wants to know first of a run or a comparison, in one to three sentences."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dimred.files.metrics_file import ACCURACY, metric_text
from dimred.report.comparison import Row, best_row, plain_title, rows_at, score_text
from dimred.report.record import StageTwoRecord, passes_of

_SCORE = "test_reestimated"
_LEVEL = 0.00005  # of an accuracy: less than the last digit that is shown


class Measured(NamedTuple):
    """What the files of a run do not hold.

    Attributes:
        split: that the metric is reported on.
        reestimated: whether BatchNorm statistics are re-estimated for it; false for a network that has none.
        last: the metric of stage 1's last weights, with such statistics; None where it could not be measured.
    """

    split: str
    reestimated: bool
    last: float | None = None


def start_in_words(result: dict[str, Any]) -> str:
    """Where stage 2 began."""
    began = str(result.get("started_from", result["start"]))
    return {"last": "the last weights of stage 1", "mean": "the mean of the snapshots"}.get(began, began)


def kept_in_words(result: dict[str, Any]) -> str:
    """Which point of stage 2 the network is."""
    kept = str(result.get("kept", "its end"))
    points = {"start": "its start", "average": "the best average of the snapshots"}
    return f"epoch {kept}" if kept.isdecimal() else points.get(kept, kept)


def run_verdict(run: StageTwoRecord, measured: Measured) -> list[str]:
    """Sentences: what to use and how good it is, what stage 2 gained over what, and what it cost."""
    result, ours, metric = run.result, run.kept_metric, run.metric
    statistics = ", BatchNorm re-estimated" if measured.reestimated else ""
    others = {"the last weights of stage 1 (": measured.last}
    if result.get("start_width", 1.0) > 1 or result["start"] == "mean":
        others[f"the average that it started from ({start_in_words(result)}, "] = run.by_point[0]
    if f"{metric}_average" in result:
        others[f"the best average of the snapshots ({result['average_of']}, "] = result[f"{metric}_average"]
    gains = [
        f"{_gain(ours - other) if metric == ACCURACY else 'beside'} {what}{metric_text(metric, other)})"
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
        said.append(f"The val split preferred {kept_in_words(result)} to every step of stage 2, so none is in it.")
    return said


def comparison_verdict(summary: dict[str, Any]) -> list[str]:
    """Sentences: what ``val`` takes after the longest stage 1, what that gained over what, and what it cost."""
    at, n_seeds, metric = summary["at"][-1], len(summary["seeds"]), summary["metric"]
    rows = {row["method"]: row for row in rows_at(summary, at)}
    chosen, best = (best_row(rows.values(), split, metric) for split in ("val", "test"))
    unit = " %" if metric == ACCURACY else f" ({metric})"
    seeds = f"over {n_seeds} seeds" if n_seeds > 1 else "of one seed"
    said = [
        f"After {at} epochs of stage 1 the val split takes: {plain_title(chosen['method'])}, which has "
        f"{score_text(chosen[_SCORE], metric)}{unit} on test {seeds}"
        f"{', BatchNorm re-estimated' if summary['batch_norm'] else ''}."
    ]
    others = [rows[name] for name in ("last", "swa") if name in rows and name != chosen["method"]]
    if others:
        if metric == ACCURACY:
            gains = [f"{_paired_gain(summary, chosen, other)} {plain_title(other['method'])}" for other in others]
        else:
            gains = [f"beside {score_text(one[_SCORE], metric)} of {plain_title(one['method'])}" for one in others]
        said.append(f"That is {' and '.join(gains)}.")
    passes = chosen["passes"] - at
    everything = (chosen["forward_epochs"] + chosen["backward_epochs"]) / 2
    cost = f"{passes:.1f} passes after stage 1, {everything:.1f} with those for choosing"
    said.append(f"It cost {cost}, and {duration(chosen['seconds'])}.")
    if best is not chosen:
        said.append(
            f"The best on test would have been: {plain_title(best['method'])}, "
            f"{metric_text(metric, best[_SCORE]['mean'])}."
        )
    if n_seeds == 1 and metric == ACCURACY:
        said.append("Of one seed, take differences below half a point for nothing.")
    return said


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _gain(difference: float, spread: float | None = None) -> str:
    if abs(difference) < _LEVEL:
        return "level with"
    error = "" if spread is None else f" ± {100 * spread:.2f}"
    return f"{100 * abs(difference):.2f}{error} points {'above' if difference > 0 else 'below'}"


def _paired_gain(summary: dict[str, Any], one: Row, other: Row) -> str:
    """How far one method is above another: the mean and the spread of the differences of the same seed."""
    found: Sequence[dict[int, float]] = [
        {
            run["seed"]: run[_SCORE]
            for run in summary["runs"]
            if (run["method"], run["at"]) == (row["method"], row["at"])
        }
        for row in (one, other)
    ]
    both = [found[0][seed] - found[1][seed] for seed in found[0].keys() & found[1].keys()]
    if len(both) > 1:
        return _gain(float(np.mean(both)), float(np.std(both, ddof=1)))
    return _gain(one[_SCORE]["mean"] - other[_SCORE]["mean"])
