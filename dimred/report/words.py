"""Sum up a run's result in a few sentences, and name its weights."""

from dimred.averaging.choice import in_words
from dimred.report.run_record import StageTwoRecord
from dimred.run_files.metric import REESTIMATED
from dimred.run_files.stage_two_result import AVERAGE, FINAL, START, StageTwoResult


def kept_in_words(result: StageTwoResult) -> str:
    """Name the weights that stage 2 kept."""
    return in_words(result.kept or FINAL)


def start_in_words(run: StageTwoRecord) -> str:
    """Name the weights that stage 2 began with, by their stage 1 epoch if that is known."""
    return f"stage 1 after epoch {run.stage_1_epochs}" if run.stage_1_epochs else "the weights that it began with"


def run_verdict(run: StageTwoRecord, split: str) -> list[str]:
    """Return sentences that say which network to use, its metric, its gains over others, and its cost.

    Args:
        run: what the run's files hold.
        split: the split that the metric was measured on.
    """
    result = run.result
    metric = run.metric
    main = run.result.main
    ours = main.at(FINAL)
    statistics = ", BatchNorm re-estimated" if REESTIMATED in main.by_point[FINAL] else ""
    others = {f"{start_in_words(run)} (": main.at(START)}
    if AVERAGE in main.by_point:
        others[f"{in_words(AVERAGE)} ({result.choices[AVERAGE].name}, "] = main.at(AVERAGE)
    has_gains = metric.is_fraction and None not in (ours, *others.values())
    gains = [
        f"{gain_text(ours - other) if has_gains else 'against'} {what}{metric.text(other)})"
        for what, other in others.items()
    ]
    name = "" if metric.is_fraction else f"{metric.name} "
    of_stage_1 = f" after the {run.stage_1_epochs} of stage 1" if run.stage_1_epochs else ""
    statements = [
        f"Use {run.final_weights}: {name}{metric.text(ours)} on {split}{statistics}.",
        f"{'That is' if has_gains else 'It stands'} {' and '.join(gains)}.",
        f"Stage 2 cost {result.passes:.1f} passes{of_stage_1}, and {duration(result.seconds)}.",
    ]
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
    """Format the difference between two fractions in percentage points, such as ``1.20 points above``.

    A negative difference is ``below``; one under half a hundredth of a point is ``level with``.

    Args:
        difference: a fraction minus the other.
        spread: standard deviation of the difference over the seeds, as a fraction; None without one.
    """
    if abs(difference) < 0.00005:  # the two look equal when rounded
        return "level with"
    error = "" if spread is None else f" ± {100 * spread:.2f}"
    return f"{100 * abs(difference):.2f}{error} points {'above' if difference > 0 else 'below'}"
