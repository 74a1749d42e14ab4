"""The part of a page that is about a search: its steps one by one."""

import numpy as np

from dimred.report import search_plots
from dimred.report.page import Page, Picture
from dimred.report.run_files import StageTwoRecord
from dimred.report.trend import column, mean_width, running_mean, trend_in_words


def add_search(page: Page, run: StageTwoRecord) -> None:
    """Add a section with the pictures of the search's steps to a page; do nothing if stage 2 had no search."""
    result, steps = run.result, run.steps
    if not result.basis:
        return
    coordinates, words = run.coordinates(), trend_in_words(len(steps))
    gain, fractions = search_plots.gains(steps), 100 * column(steps, "captured_fraction")
    failures = {
        "found no trial that lowers the loss enough": sum(step["outcome"] == "no_decrease" for step in steps),
        "skipped, because loss or gradient was not finite": sum(
            step["outcome"] == "non_finite_gradient" for step in steps
        ),
    }
    outcome = f"{result.totals['accepted_steps']} of {result.steps} steps were accepted"
    outcome += "".join(f"; {count} {words_of}" for words_of, count in failures.items() if count)
    inside_text = f"{np.nanmean(fractions):.2g} %" if np.isfinite(fractions).any() else "unknown"
    first, last = (running_mean(gain, mean_width(len(gain)))[end] for end in (0, -1))
    inside, outside = (np.nansum(column(steps, key)) for key in ("moved_inside", "moved_outside"))
    away = float(np.linalg.norm(coordinates[-1]))
    farthest = int(np.abs(coordinates[-1]).argmax())
    page.add("The search, step by step", [
        Picture(
            "gains", search_plots.plot_gains(steps),
            f"Gain of each step, {first:.3g} on average at first and {last:.3g} at the end; {outcome}, with "
            f"{result.totals['trials']} trials.",
            "Gain of each step inside the subspace on its own batch, accepted t, and number of trials. "
            f"{outcome[0].upper()}{outcome[1:]}. {words}",
        ),
        Picture(
            "movement", search_plots.plot_movement(steps, coordinates),
            f"Distances that the steps moved: {inside:.3g} in all inside the subspace, which led {away:.3g} away from "
            f"the start, and {outside:.3g} outside it.",
            f"Distance that each step moved, and path so far. {words}",
        ),
        Picture(
            "coordinates", search_plots.plot_coordinates(coordinates),
            f"Movement along each of the {coordinates.shape[1]} directions; the farthest is direction {farthest + 1}, "
            f"{coordinates[-1, farthest]:.3g}.",
            f"The {coordinates.shape[1]} coordinates, relative to the start. Directions are numbered by their "
            "fraction of the snapshots' variance, the largest first.",
        ),
        Picture(
            "captured", search_plots.plot_captured(steps),
            f"Part of the gradient inside the subspace, {inside_text} on average.",
            f"Part of the gradient's squared length that lies inside the subspace. {words}",
        ),
    ])  # fmt: skip
