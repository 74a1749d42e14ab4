"""Run both stages on the tiny task, inside this process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import mindspore as ms
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.distributed.ranks import ALONE
from dimred.evaluation.scores import CLASSIFICATION
from dimred.stages.parent import build_cooldown_step, read_handover
from dimred.stages.run_folder import open_session
from dimred.stages.search import SearchRun
from dimred.stages.stage_1 import Training
from dimred.stages.stage_2 import Finish
from dimred.stages.states import read_full_checkpoint
from dimred.stages.steps import build_train_step
from dimred.stages.subspace_train_step import build_search_step
from dimred.stages.task import build_data, build_network
from dimred.subspace.basis import load_basis
from dimred.train_step.protocol import parameters_to_save
from dimred.vectors.parameters import from_arrays, to_arrays

Run = Callable[[Path, bool], object]  # the folder, and whether to resume


def stage_1_run(settings: StageOneConfig, allowed: Sequence[str] = (), begin: Path | None = None) -> Run:
    """Make a function that runs stage 1 with the same cells, compiled once, and the same values at the beginning.

    Args:
        settings: configuration of the run.
        allowed: keys that may differ from the earlier run's.
        begin: a full checkpoint to begin with.
    """
    ms.set_seed(settings.seed)
    network = build_network(settings)
    images = {split: build_data(settings.data, Path(), split) for split in ("train", "val")}
    step = build_train_step(settings, network, images["train"].steps_per_epoch)
    first = to_arrays(parameters_to_save(step))

    def run(out: Path, resume: bool) -> None:
        from_arrays(parameters_to_save(step), first, "the beginning")
        with open_session(out, settings, ALONE) as session:
            training = Training(session, settings, network, step, images, CLASSIFICATION)
            training.restore(None if begin is None else read_full_checkpoint(begin, "--from"), [*allowed])
            training.run()

    return run


def stage_2_run(
    settings: StageTwoConfig, weights: Path, matrix: Path | None = None, allowed: Sequence[str] = ()
) -> Run:
    """Make a function that runs stage 2, as ``stage_1_run`` does.

    Args:
        settings: configuration of the run; ``epochs`` is a number.
        weights: the full checkpoint to begin with, in its run.
        matrix: the basis of a search; None without one.
        allowed: keys that may differ from the earlier run's.
    """
    network, start = build_network(settings), read_checkpoint(weights)
    images = {split: build_data(settings.data, Path(), split) for split in settings.splits}
    per_epoch, cooldown, search = images["train"].steps_per_epoch, settings.cooldown, settings.search
    handover = None if cooldown is None else read_handover(cooldown, network, weights, start)
    basis = None if matrix is None else load_basis(matrix, network=network)
    if search is None:
        step = build_cooldown_step(settings, handover, network, per_epoch)
    else:
        step = build_search_step(settings, search, handover, network, basis, per_epoch)
    begin, first = to_arrays(step.get_parameters()) | start, getattr(step, "memory", None)

    def run(out: Path, resume: bool) -> None:
        from_arrays(step.get_parameters(), begin, "the beginning")  # the rates too
        with open_session(out, settings, ALONE) as session:
            common = (session, settings, network, step, images, CLASSIFICATION, {}, handover)
            if search is None:
                finish = Finish(*common)
            else:
                step.memory, finish = first, SearchRun(*common, basis)
            if not finish.restore([*allowed]):
                finish.put_start(CheckpointSeries.open(weights.parent / "checkpoint_pca"))
            finish.run()

    return run


@contextmanager
def dying(kind: type, method: str) -> Iterator[None]:
    """Let the run in the block die where it calls this method."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, lambda *_, **__: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            yield
