"""Handle the faults of a run that has begun: a disk, data or memory fails, or training diverges."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dimred.checkpoints.states import RunStates
from dimred.errors import DataError, DimredError, DivergedError, FaultError, StoppedError
from dimred.io.atomic import describe_os_error
from dimred.launch.channel import has_launcher


@contextmanager
def translate_errors(states: RunStates | None, *, is_kept: bool = True) -> Iterator[None]:
    """Turn a fault inside the block into an error that says what failed, what is kept, and how to continue.

    Args:
        states: the run's states, on rank 0; None elsewhere.
        is_kept: whether the run's files are kept; otherwise there is nothing to resume.

    Raises:
        FaultError: in place of an OSError, a DataError, or MindSpore's error for lack of memory. A FaultError, such as
            a DivergedError, or a StoppedError is raised again with the last good state added to its message.
    """
    try:
        yield
    except Exception as error:
        fault = _fault_of(error, states, is_kept)
        if fault is None:
            raise
        raise fault from error


def _fault_of(error: Exception, states: RunStates | None, is_kept: bool) -> DimredError | None:
    """Return the error to raise in place of ``error``; None to raise ``error`` itself."""
    go_on = "run the same command with --resume" if is_kept else "run the same command again"

    def kept() -> str:
        if not is_kept:
            return "nothing of this trial is kept"
        return "rank 0 has the last good state, if any" if states is None else states.newest_in_words()

    if isinstance(error, StoppedError):
        return StoppedError(error.number, f"{kept()}; {go_on}", by_launcher=has_launcher())
    if isinstance(error, DivergedError):
        return DivergedError(
            f"{error}; {kept()}, but the same steps would diverge again: train in a new folder with a lower "
            "schedule.peak (in stage 2, cooldown.factor), a longer schedule.warmup_epochs, clipping.norm, or a "
            "loss_scale that drops overflows"
        )
    if isinstance(error, OSError | DataError | FaultError):
        what = describe_os_error(error) if isinstance(error, OSError) else error
        return FaultError(f"{what}; {kept()}: once the cause is gone, {go_on}")
    if isinstance(error, RuntimeError) and (line := _NO_MEMORY.search(str(error))):
        return FaultError(
            f"a step needs more memory than there is ({line[0].strip()}); {kept()}: lower data.batch_size, and raise "
            "accumulation and data.multiple_of by the same factor to train as before"
        )
    return None


# MindSpore's words on CPU and on devices; among its many lines, the pattern finds the one with the size.
_NO_MEMORY = re.compile(r"^.*(memory isn't enough|out of memory).*$", re.IGNORECASE | re.MULTILINE)

_WINDOW = 10  # losses judged together, because a dynamic loss scale begins with a few overflows in a row
_EXPLOSION = 100.0  # times the size of the first loss, or times 1 if that is larger


@dataclass(eq=False)
class DivergenceDetector:
    """A detector that raises an error when training diverges, before it has cost days.

    It judges ten losses at a time. Training diverges if none of them is finite, or if each finite one exceeds
    100 max(1, |first loss of the run|). The losses are means over all ranks, so all ranks agree.

    Attributes:
        first_loss: the run's first finite loss; None until there is one.
    """

    first_loss: float | None = None
    _recent: list[float] = field(default_factory=list, init=False)

    def check(self, loss: float, step: int) -> None:
        """Check the loss of a step, the same on all ranks, together with those before it.

        Raises:
            DivergedError: training diverged; the message says how.
        """
        if self.first_loss is None and math.isfinite(loss):
            self.first_loss = loss
        self._recent.append(loss)
        if len(self._recent) < _WINDOW:
            return
        finite = [loss for loss in self._recent if math.isfinite(loss)]
        self._recent.clear()
        if not finite:
            raise DivergedError(f"none of the {_WINDOW} losses up to step {step} was a finite number")
        if min(finite) > _EXPLOSION * max(abs(self.first_loss or 0.0), 1.0):
            raise DivergedError(
                f"the loss exploded: of the {_WINDOW} losses up to step {step}, the finite ones lie between "
                f"{min(finite):.4g} and {max(finite):.4g}; the first loss of the run was {self.first_loss:.4g}"
            )
