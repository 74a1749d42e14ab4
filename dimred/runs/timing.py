"""Time a run's steps, for ``dimred bench``."""

import math
import time
from typing import Any, NamedTuple

from dimred.config import StageOneConfig
from dimred.runs.loop import EpochLoop, Observer, Progress
from dimred.runs.run import Run
from dimred.runs.task import Task
from dimred.train_step.protocol import Step

_STEPS = 50
_WARM_UP = 10


class StepTimes(NamedTuple):
    """The times of some steps.

    Attributes:
        first: seconds of the first step, including compilation.
        seconds: seconds of the steps after the warm-up.
        n_steps: number of these steps.
        n_rows: number of samples in these steps, on this rank.
    """

    first: float
    seconds: float
    n_steps: int
    n_rows: int


class _Timer(Observer):
    """An observer that reads the loss of stage 1's steps, like a run, and notes the time of each read."""

    def __init__(self) -> None:
        self.n_launched = 0
        self.done_at: dict[int, float] = {}

    def count(self) -> None:
        """Count a step that was launched."""
        self.n_launched += 1

    def after_step(self, result: Any, progress: Progress) -> None:
        """Read the loss, and note the time and the steps launched by then."""
        float(result.loss)
        self.done_at[self.n_launched] = time.perf_counter()

    def save(self, progress: Progress) -> None:
        """Save nothing."""

    def after_epoch(self, progress: Progress) -> None:
        """Measure nothing."""


def time_steps(run: Run[StageOneConfig], task: Task[StageOneConfig], step: Step) -> StepTimes:
    """Compile the step, make 50 more steps on the training batches, and time them from the tenth on."""
    config = task.config
    runs = []
    start = time.perf_counter()
    for n_steps in (1, _STEPS):
        part = task.training_batches.shortened(n_steps)
        timer = _Timer()
        loop = EpochLoop(
            "stage 1",
            step,
            part,
            seed=config.seed,
            n_epochs=math.ceil(n_steps / part.steps_per_epoch),
            save_every_steps=config.save_every_steps,
            ranks=task.ranks,
            signals=run.signals,
            read_every_steps=min(config.read_every_steps, _STEPS // 2),
            after_launch=timer.count,
        )
        loop.run(Progress(), timer)
        runs.append(timer.done_at)
    first_result = runs[0][1]
    done_at = runs[1]
    first = min(n for n in done_at if n >= _WARM_UP)
    last = max(done_at)
    per_epoch = part.steps_per_epoch  # an epoch's last step may have fewer rows
    n_rows = sum(part.rows_of_step(step_before % per_epoch + 1) for step_before in range(first, last))
    return StepTimes(first_result - start, done_at[last] - done_at[first], last - first, n_rows)
