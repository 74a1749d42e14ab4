"""The part of a page that is about a search: its steps one by one."""

import numpy as np

from dimred.report import search_plots
from dimred.report.page import Page, Picture
from dimred.report.run_files import StageTwoRecord
from dimred.report.search_steps import FAILURES
from dimred.report.trend import mean_width, running_mean, trend_in_words


def add_search(page: Page, run: StageTwoRecord) -> None:
    """Add a section with the pictures of the search's steps to a page; do nothing if stage 2 had no search."""
    result, steps = run.result, run.steps
    if steps is None:
        return
    words, end = trend_in_words(len(steps)), steps.coordinates[-1]
    gain, fractions = steps.gains, 100 * steps["captured_fraction"]
    counts = {in_words: int(steps[failure].sum()) for failure, in_words in FAILURES.items()}
    outcome = f"{result.totals['accepted_steps']} of {result.steps} steps were accepted"
    outcome += "".join(f"; {count} {in_words}" for in_words, count in counts.items() if count)
    inside_text = f"{np.nanmean(fractions):.2g} %" if np.isfinite(fractions).any() else "unknown"
    first, last = (running_mean(gain, mean_width(len(gain)))[place] for place in (0, -1))
    inside, outside = (np.nansum(steps[key]) for key in ("moved_inside", "moved_outside"))
    away = float(np.linalg.norm(end))
    farthest = int(np.abs(end).argmax())
    page.add("The search, step by step", [
        Picture(
            "gains", search_plots.plot_gains(steps),
            f"Gain of each step, {first:.3g} on average at first and {last:.3g} at the end; {outcome}, with "
            f"{result.totals['trials']} trials.",
            "Gain of each step inside the subspace on its own batch, accepted t, and number of trials. "
            f"{outcome[0].upper()}{outcome[1:]}. {words}",
        ),
        Picture(
            "movement", search_plots.plot_movement(steps),
            f"Distances that the steps moved: {inside:.3g} in all inside the subspace, which led {away:.3g} away from "
            f"the start, and {outside:.3g} outside it.",
            f"Distance that each step moved, and path so far. {words}",
        ),
        Picture(
            "coordinates", search_plots.plot_coordinates(steps),
            f"Movement along each of the {len(end)} directions; the farthest is direction {farthest + 1}, "
            f"{end[farthest]:.3g}.",
            f"The {len(end)} coordinates, relative to the start. Directions are numbered by their "
            "fraction of the snapshots' variance, the largest first.",
        ),
        Picture(
            "captured", search_plots.plot_captured(steps),
            f"Part of the gradient inside the subspace, {inside_text} on average.",
            f"Part of the gradient's squared length that lies inside the subspace. {words}",
        ),
    ])  # fmt: skip
