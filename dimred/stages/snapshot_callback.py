"""SnapshotCallback: keep a series of weight snapshots during a user's own ``Model.train``."""

import os
from contextlib import ExitStack
from typing import Any

from mindspore import communication, nn
from mindspore.communication import GlobalComm
from mindspore.train import Callback

from dimred.checkpoints.series import CheckpointSeries, SeriesWriter, check_series_options
from dimred.errors import ConfigError, check_number, check_type, shown
from dimred.io.atomic import retry
from dimred.train_step.optimizer_state import weights_to_use


class SnapshotCallback(Callback):
    """A callback for ``mindspore.train.Model`` that keeps a series of snapshots of the trained weights.

    Stage 2 and ``dimred merge`` read the series. Rank 0 writes it and other ranks do nothing, so each rank must hold
    all weights, as in data-parallel training. In sink mode MindSpore calls back once per sink, so a snapshot is taken
    at the end of the sink in which it is due. With ``ScheduleFree`` the averaged point is kept.

    Args:
        folder: folder of the series, made if missing.
        every: steps from one snapshot to the next; None for one at each epoch's end.
        keep: how many snapshots stay; None keeps all.
        prefix: prefix of the files' names, ``{prefix}-{epoch}_{step}.{format}``.
        format: format of the files, ``ckpt`` or ``safetensors``.
        resume: whether to continue the series in the folder, if it holds the earlier part of the same training.

    Attributes:
        series: the ``SeriesWriter``, on rank 0 once training has begun; None otherwise.

    Raises:
        ConfigError: an option is not allowed; or, when training begins, the network has no trainable weights, or the
            folder has snapshots of later steps, for example from a different training.
        SeriesError: when training begins, the folder has snapshots, and ``resume`` is not set; or the weights do not
            fit them.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | None = None,
        keep: int | None = 40,
        prefix: str = "weights",
        format: str = "ckpt",
        resume: bool = False,
    ) -> None:
        super().__init__()
        check_type("folder", folder, (str, os.PathLike), "the path of a folder")
        if every is not None:
            check_number("every", every, at_least=1, whole=True, usual="None takes one snapshot an epoch")
        check_series_options(keep, prefix, format)
        self.series: SeriesWriter | None = None
        self._folder = folder
        self._every = every
        self._keep = keep
        self._prefix = prefix
        self._format = format
        self._resume = resume
        self._weights: list[Any] = []
        self._optimizers: list[nn.Optimizer] = []
        self._before: int | None = None  # steps made before this call of Model.train
        self._taken_at = 0

    def on_train_begin(self, run_context: Any) -> None:
        """Open the series and find the trained weights."""
        if GlobalComm.INITED and communication.get_rank() != 0:
            return
        arguments = run_context.original_args()
        cells = [cell for _, cell in arguments.train_network.cells_and_names()]
        self._optimizers = [cell for cell in cells if isinstance(cell, nn.Optimizer)]
        self._weights = _trained_weights(arguments.network, self._optimizers)
        if not self._weights:
            raise ConfigError("the network has no trainable weights, so there is nothing to keep snapshots of")
        open_series = CheckpointSeries.resume if self._resume else CheckpointSeries.create
        self.series = open_series(self._folder, self._keep, prefix=self._prefix, format=self._format)
        self._resume = True  # the next call of Model.train continues the series
        self._before = None

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Check before the first epoch that the folder has no snapshot from a later step."""
        arguments = run_context.original_args()
        series = self.series
        if series is None or self._before is not None:
            return
        # MindSpore counts steps from 0 even when it starts after ``initial_epoch`` epochs.
        self._before = (arguments.cur_epoch_num - 1) * arguments.batch_num - arguments.cur_step_num
        newest = series.entries[-1].step if series.entries else 0
        if newest > self._step(arguments):
            raise ConfigError(
                f"folder is {shown(str(self._folder))}, which has snapshots up to step {newest}, and this training "
                f"begins after step {self._step(arguments)}; name another folder, or continue with "
                "Model.train(initial_epoch=...)",
                argument="folder",
            )
        self._taken_at = self._step(arguments)

    def on_train_step_end(self, run_context: Any) -> None:
        """Take a snapshot if a multiple of ``every`` steps has been reached."""
        arguments = run_context.original_args()
        if self._every is not None and self._step(arguments) // self._every > self._taken_at // self._every:
            self._take(arguments)

    def on_train_epoch_end(self, run_context: Any) -> None:
        """Take a snapshot if ``every`` is None."""
        if self._every is None:
            self._take(run_context.original_args())

    def _step(self, arguments: Any) -> int:
        return int(arguments.cur_step_num + (self._before or 0))

    def _take(self, arguments: Any) -> None:
        series = self.series
        self._taken_at = self._step(arguments)
        if series is not None:
            with ExitStack() as in_place:
                for optimizer in self._optimizers:
                    in_place.enter_context(weights_to_use(optimizer))
                weights = {weight.name: weight for weight in self._weights}
                retry(lambda: series.append(weights, self._taken_at, arguments.cur_epoch_num))


def _trained_weights(network: nn.Cell, optimizers: list[nn.Optimizer]) -> list[Any]:
    """Return the trained parameters, in the network's order.

    Args:
        network: the network given to ``Model``; if that is a whole training step, its momenta are trainable too.
        optimizers: the optimizers in the step that ``Model`` calls; they know which parameters they update.
    """
    ids = {id(weight) for optimizer in optimizers for weight in optimizer.parameters}
    return [weight for weight in network.trainable_params() if not ids or id(weight) in ids]
