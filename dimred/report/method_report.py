"""What a stage 2 method recorded, and what the run's page says about it."""

from pathlib import Path

import numpy as np

from dimred.config import StageTwoConfig
from dimred.errors import ConfigError
from dimred.factories import load_factory
from dimred.report.page import Page
from dimred.report.trend import column
from dimred.run_files.metrics_file import numbered_records
from dimred.run_files.run_names import METRICS
from dimred.run_files.stage_two_result import StageTwoResult


class MethodReport:
    """A finished stage 2's records, and its method's parts of the run's page.

    By default there is one record per epoch, as in ordinary training, and the method adds nothing to the page.

    Args:
        folder: the run's folder.
        config: its configuration.
        result: its result.

    Raises:
        ConfigError: its training records are gone.
        RunError: the records can't be read, or don't belong to the result.
    """

    def __init__(self, folder: Path, config: StageTwoConfig, result: StageTwoResult) -> None:
        self.config = config
        self.result = result
        self.read(folder)

    def read(self, folder: Path) -> None:
        """Read the run's records."""
        self.epochs = list(numbered_records(folder / METRICS, "epoch"))
        if self.result.epochs > 0 and not self.epochs:
            raise ConfigError(f"RUN is {str(folder)!r}, whose stage 2 took no step; there is nothing to report")

    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the stage 2 epoch and the training loss from each of n records.

        Returns:
            Epochs and losses, float64 (n,) each; an epoch may be a fraction.
        """
        return column(self.epochs, "epoch"), column(self.epochs, "loss")

    def losses_caption(self) -> str:
        """Return a sentence about these losses for their picture's caption; empty for none."""
        return ""

    def facts(self) -> list[tuple[str, str]]:
        """Return figures for the top of the page, as pairs of a value and its meaning."""
        return []

    def sentences(self) -> list[str]:
        """Return sentences for the top of the page."""
        return []

    def add_sections(self, page: Page) -> None:
        """Add the sections that only this method has."""


def report_of(folder: Path, config: StageTwoConfig, result: StageTwoResult) -> MethodReport:
    """Make the report for the method that a configuration names; the arguments are as for ``MethodReport``.

    Raises:
        ConfigError: the report for a user's own method can't be imported.
        ConfigError, RunError: as for ``MethodReport``.
    """
    name = config.method_config.report
    make = load_factory(name, f"the report of method {config.method}")
    report: MethodReport = make(folder, config, result)
    return report
