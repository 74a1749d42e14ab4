"""Sum up in a few sentences what a run achieved, and name what it made."""

from dimred.io.metric import REESTIMATED
from dimred.io.stage_two_result import AVERAGE, FINAL, START, StageTwoResult
from dimred.report.record import StageTwoRecord


def in_words(point: str) -> str:
    """Return a name for readers of one of stage 2's points or candidates; an unknown one is returned as it is.

    Args:
        point: ``start``, the number of an epoch, ``average``, ``final`` or ``last``.
    """
    words = {
        "start": "stage 2's start", "average": "the best average of the snapshots",
        "last": "the last weights of stage 1", "final": "stage 2's last weights",
    }  # fmt: skip
    return f"epoch {point}" if point.isdecimal() else words.get(point, point)


def kept_in_words(result: StageTwoResult) -> str:
    """Name the weights that stage 2 kept."""
    return in_words(result.kept or FINAL)


def run_verdict(run: StageTwoRecord, split: str, last: float | None) -> list[str]:
    """Return sentences about which network to use, its metric, its gains over others, and its cost.

    Args:
        run: contents of the run's files.
        split: the split that the metric was measured on.
        last: metric of stage 1's last weights, as for ``write_report``; None to leave it out.
    """
    result, metric, main = run.result, run.metric, run.result.main
    ours = main.at(FINAL)
    statistics = ", BatchNorm re-estimated" if REESTIMATED in main.by_point[FINAL] else ""
    others = {"the last weights of stage 1 (": last}
    if AVERAGE in main.by_point:
        others[f"the best average of the snapshots ({result.choices[AVERAGE].name}, "] = main.at(AVERAGE)
    gains = [
        f"{gain_text(ours - other) if metric.is_fraction else 'against'} {what}{metric.text(other)})"
        for what, other in others.items()
        if other is not None
    ]
    name = "" if metric.is_fraction else f"{metric.name} "
    statements = [f"Use {run.final_weights}: {name}{metric.text(ours)} on {split}{statistics}."]
    if gains:
        statements.append(f"{'That is' if metric.is_fraction else 'It stands'} {' and '.join(gains)}.")
    of_stage_1 = f" after the {run.stage_1_epochs} of stage 1" if run.stage_1_epochs else ""
    statements.append(f"Stage 2 cost {result.passes:.1f} passes{of_stage_1}, and {duration(result.seconds)}.")
    if result.kept in (START, AVERAGE):
        preference = f"The val split preferred {kept_in_words(result)} to the end of stage 2"
        statements.append(f"{preference}, so no epoch of stage 2 is used.")
    return statements


def duration(seconds: float) -> str:
    """Format a number of seconds as seconds, minutes, or hours and minutes."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def gain_text(difference: float, spread: float | None = None) -> str:
    """Format the difference of two fractions in percentage points, such as ``1.20 points above``.

    A negative difference is ``below``, and one of less than half a hundredth of a point ``level with``.

    Args:
        difference: a fraction minus the other.
        spread: standard deviation of the difference over the seeds, as a fraction; None without one.
    """
    if abs(difference) < 0.00005:  # they are shown equal
        return "level with"
    error = "" if spread is None else f" ± {100 * spread:.2f}"
    return f"{100 * abs(difference):.2f}{error} points {'above' if difference > 0 else 'below'}"
