"""Runs of stage 1 on the tiny task, inside this process."""

from collections.abc import Callable, Sequence
from pathlib import Path

import mindspore as ms

from dimred.build import build_data, build_network, build_train_step
from dimred.config import StageOneConfig
from dimred.distributed.ranks import ALONE
from dimred.run.session import open_session
from dimred.run.states import read_full_checkpoint
from dimred.run.training import Training, parameters_to_save
from dimred.vectors.parameters import from_arrays, to_arrays

Run = Callable[[Path, bool], object]  # the folder, and whether to resume


def stage_1_run(settings: StageOneConfig, allowed: Sequence[str] = (), begin: Path | None = None) -> Run:
    """Every run uses the same cells, so that they are compiled once; it begins with the same values in them.

    Args:
        settings: of the run.
        allowed: keys that may differ from before.
        begin: a full checkpoint to begin with.
    """
    ms.set_seed(settings.seed)
    network = build_network(settings)
    images = {split: build_data(settings.data, Path(), split) for split in ("train", "val")}
    step = build_train_step(settings, network, images["train"].steps_per_epoch)
    first = to_arrays(parameters_to_save(step))

    def run(out: Path, resume: bool) -> None:
        from_arrays(parameters_to_save(step), first, "the beginning")
        with open_session(out, settings, ALONE, resume=resume) as session:
            training = Training(session, settings, network, step, images)
            training.restore(None if begin is None else read_full_checkpoint(begin, "--from"), [*allowed])
            training.run()

    return run
