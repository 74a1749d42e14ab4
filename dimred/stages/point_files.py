"""The checkpoints of stage 2's points."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mindspore import Parameter

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.distributed.ranks import Ranks
from dimred.io.atomic import make_folder, remove_leftovers, retry
from dimred.run_files.run_names import full_checkpoints
from dimred.train_step.optimizer_state import state_parameters
from dimred.train_step.protocol import Step, parameters_to_save
from dimred.vectors.parameters import to_arrays


@dataclass(eq=False)
class PointFiles:
    """Stage 2's checkpoints, one for each point: ``start``, ``average``, an epoch's number, or ``final``.

    A file is named ``{prefix}-{point}.ckpt``, or ``{prefix}-{epoch}_{steps_per_epoch}.ckpt`` for an epoch.

    Attributes:
        folder: folder of the checkpoints; made if missing.
        prefix, steps_per_epoch: parts of the files' names.
        keep: how many of the newest epochs stay, in addition to the held ones; None keeps all.
        ranks: all of them call ``save``; rank 0 writes.
    """

    folder: Path
    prefix: str
    steps_per_epoch: int
    keep: int | None
    ranks: Ranks
    _held: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        if self.ranks.is_rank_zero and self.folder.is_dir():
            remove_leftovers(self.folder, is_only_writer=True)

    def path(self, point: str | int) -> Path:
        """Return the path of a point's checkpoint."""
        name = f"{point}_{self.steps_per_epoch}" if isinstance(point, int) else point
        return self.folder / f"{self.prefix}-{name}.ckpt"

    def hold(self, path: Path) -> None:
        """Keep a checkpoint however old it gets, because its network may be chosen."""
        self._held.add(path.name)

    def save(self, point: str | int, parameters: Sequence[Parameter]) -> None:
        """Write a point's checkpoint; after an epoch, also remove older epochs' checkpoints beyond ``keep``."""
        arrays = to_arrays(parameters)

        def write() -> None:
            make_folder(self.folder)
            retry(lambda: write_checkpoint(self.path(point), arrays))
            if isinstance(point, int) and self.keep is not None:
                self._remove_until(point - self.keep)

        self.ranks.run_on_rank_zero(write)

    def _remove_until(self, last: int) -> None:
        """Remove the checkpoints of the epochs up to ``last`` except the held ones."""
        for epoch, path in full_checkpoints(self.folder).items():
            if epoch <= last and path.name not in self._held:
                with suppress(OSError):  # training matters more, and the next epoch tries again
                    path.unlink(missing_ok=True)


def parameters_of_point(step: Step) -> list[Parameter]:
    """Return the content of a point's checkpoint: the parameters of the network and of the step's parts."""
    of_optimizer = {id(parameter) for parameter in state_parameters(step.optimizer)}
    return [parameter for parameter in parameters_to_save(step) if id(parameter) not in of_optimizer]
