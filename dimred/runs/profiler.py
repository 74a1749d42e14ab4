"""Profile some steps of a run with MindSpore's profiler."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import profiler

from dimred.config.parts import ProfileConfig

_log = logging.getLogger(__name__)


class StepProfiler:
    """A context manager that profiles some steps of this process, and writes the record into a folder.

    Its value is the function to call after each step.

    Args:
        options: which steps.
        folder: the folder, made if missing.
    """

    def __init__(self, options: ProfileConfig, folder: Path):
        self._options = options
        self._folder = folder
        self._n_steps = 0
        self._profile: Any = None

    def __enter__(self) -> Callable[[], None]:
        return self._after_step

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.stop()

    def _after_step(self) -> None:
        """Count a step; start the profiler before the first step to record, and stop it after the last one."""
        self._n_steps += 1
        if self._n_steps == self._options.first_step - 1:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._profile = profiler.profile(
                schedule=profiler.schedule(wait=0, active=self._options.steps, repeat=1),
                on_trace_ready=profiler.tensorboard_trace_handler(str(self._folder)),
            )
        elif self._profile is not None:
            self._profile.step()
            if self._n_steps == self._options.first_step - 1 + self._options.steps:
                self._profile.stop()
                self._profile = None
                _log.info(f"profile of {self._options.steps} steps: {self._folder}")
