"""What a method of stage 2 has recorded, and what the page of its run says about it."""

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
    """The records of a finished stage 2, and its method's parts of the page.

    By default there is a record for each epoch, as of ordinary training, and the page has no part of the method's own.

    Args:
        folder: the run's folder.
        config: its configuration.
        result: its result.

    Raises:
        ConfigError: the records of its training are gone.
        RunError: the records can't be read, or are not those of the result.
    """

    def __init__(self, folder: Path, config: StageTwoConfig, result: StageTwoResult) -> None:
        self.config = config
        self.result = result
        self.read(folder)

    def read(self, folder: Path) -> None:
        """Read the records of the run."""
        self.epochs = list(numbered_records(folder / METRICS, "epoch"))
        if self.result.epochs > 0 and not self.epochs:
            raise ConfigError(f"RUN is {str(folder)!r}, whose stage 2 took no step; there is nothing to report")

    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch of stage 2 and the training loss of each of n records.

        Returns:
            Epochs and losses, float64 (n,) each; an epoch may be a fraction.
        """
        return column(self.epochs, "epoch"), column(self.epochs, "loss")

    def losses_caption(self) -> str:
        """Return a sentence about these losses, for the caption of their picture; empty for none."""
        return ""

    def facts(self) -> list[tuple[str, str]]:
        """Return figures for the head of the page, as pairs of a value and its meaning."""
        return []

    def sentences(self) -> list[str]:
        """Return sentences for the head of the page."""
        return []

    def add_sections(self, page: Page) -> None:
        """Add the sections that only this method has."""


def report_of(folder: Path, config: StageTwoConfig, result: StageTwoResult) -> MethodReport:
    """Make the report of the method that a configuration names; the arguments are those of ``MethodReport``.

    Raises:
        ConfigError: that of a user's own method can't be imported.
        ConfigError, RunError: as for ``MethodReport``.
    """
    name = config.method_config.report
    make = load_factory(name, f"the report of method {config.method}")
    report: MethodReport = make(folder, config, result)
    return report
