"""A search's steps, and the part of a run's page about them."""

from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import RunError
from dimred.report import search_plots
from dimred.report.method_report import MethodReport
from dimred.report.page import Page, Picture
from dimred.report.search_steps import FAILURES, collect_steps
from dimred.report.trend import mean_width, running_mean, trend_in_words
from dimred.run_files.metrics_file import numbered_records
from dimred.run_files.run_names import METRICS, RESULT


class SearchReport(MethodReport):
    """A search's report; it has one record per step.

    Attributes:
        steps: the steps.
    """

    def read(self, folder: Path) -> None:
        """Read the steps' records, and check that none is missing."""
        path = folder / METRICS
        n_steps = self.result.steps
        self.steps = collect_steps(numbered_records(path, "step"), n_steps)
        if len(self.steps) != n_steps:
            raise RunError(
                f"{path} has {len(self.steps):,} records, but {RESULT} says that the search took {n_steps:,} steps; "
                "restore the file"
            )

    @property
    def _basis(self) -> dict[str, Any]:
        basis = self.result.basis
        assert basis is not None  # a search has one
        return basis

    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each step's epoch, which may be a fraction, and the loss before the step."""
        return self.steps["step"] * self.result.epochs / self.result.steps, self.steps["loss"]

    def losses_caption(self) -> str:
        """Say which of a step's losses is drawn."""
        return f" In stage 2, it is the loss before each step. {trend_in_words(len(self.steps))}"

    def facts(self) -> list[tuple[str, str]]:
        """Return how many steps were accepted, and the subspace's number of dimensions."""
        return [
            (f"{self.result.totals['accepted_steps']} of {self.result.steps}", "steps accepted"),
            (f"{self._basis['n_components']} of {self._basis['n_weights']:,}", "dimensions searched"),
        ]

    def add_sections(self, page: Page) -> None:
        """Add a section with the steps' pictures."""
        result = self.result
        steps = self.steps
        words = trend_in_words(len(steps))
        end = steps.coordinates[-1]
        gain = steps.gains
        fractions = 100 * steps["captured_fraction"]
        counts = {in_words: int(steps[failure].sum()) for failure, in_words in FAILURES.items()}
        outcome = f"{result.totals['accepted_steps']} of {result.steps} steps were accepted"
        outcome += "".join(f"; {count} {in_words}" for in_words, count in counts.items() if count)
        inside_text = f"{np.nanmean(fractions):.2g} %" if np.isfinite(fractions).any() else "unknown"
        first, last = running_mean(gain, mean_width(len(gain)), (0, len(gain) - 1))
        inside, outside = (np.nansum(steps[key]) for key in ("moved_inside", "moved_outside"))
        away = float(np.linalg.norm(end))
        farthest = int(np.abs(end).argmax())
        gains = Picture(
            "gains",
            search_plots.plot_gains(steps),
            f"Gain of each step, {first:.3g} on average at first and {last:.3g} at the end; {outcome}, with "
            f"{result.totals['trials']} trials.",
            "Gain of each step inside the subspace on its own batch, accepted t, and number of trials. "
            f"{outcome[0].upper()}{outcome[1:]}. {words}",
        )
        movement = Picture(
            "movement",
            search_plots.plot_movement(steps),
            f"The steps moved {inside:.3g} in total inside the subspace, and ended {away:.3g} away from the start; "
            f"outside it they moved {outside:.3g}.",
            f"Distance that each step moved, and path so far. {words}",
        )
        coordinates = Picture(
            "coordinates",
            search_plots.plot_coordinates(steps),
            f"Movement along each of the {len(end)} directions; the farthest is direction {farthest + 1}, "
            f"{end[farthest]:.3g}.",
            f"The {len(end)} coordinates, relative to the start. Directions are numbered by their "
            "fraction of the snapshots' variance, the largest first.",
        )
        captured = Picture(
            "captured",
            search_plots.plot_captured(steps),
            f"Part of the gradient inside the subspace, {inside_text} on average.",
            f"Part of the gradient's squared length that lies inside the subspace. {words}",
        )
        page.add("The search, step by step", [gains, movement, coordinates, captured])
