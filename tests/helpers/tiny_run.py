"""Runs of both stages on the tiny task, inside this process."""

from collections.abc import Callable, Sequence
from pathlib import Path

import mindspore as ms

from dimred.build import build_data, build_network, build_search_step, build_train_step
from dimred.build.continuation import build_continued_optimizer, read_continuation
from dimred.build.preflight import splits_read
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.distributed.ranks import ALONE
from dimred.evaluate.scores import CLASSIFICATION
from dimred.run.search import Search
from dimred.run.session import open_session
from dimred.run.states import read_full_checkpoint
from dimred.run.training import Training, parameters_to_save
from dimred.subspace.basis import load_basis
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.series import CheckpointSeries

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


def stage_2_run(
    settings: StageTwoConfig, weights: Path, matrix: Path | None = None, allowed: Sequence[str] = ()
) -> Run:
    """As ``stage_1_run``.

    Args:
        settings: of the run; ``epochs`` is a number.
        weights: the full checkpoint to begin with, in its run.
        matrix: the basis; None without directions.
        allowed: keys that may differ from before.
    """
    network = build_network(settings)
    images = {split: build_data(settings.data, Path(), split) for split in splits_read(settings)}
    basis = None if matrix is None else load_basis(matrix, network=network)
    per_epoch, start, optimizer, taken_over = images["train"].steps_per_epoch, read_checkpoint(weights), None, {}
    if settings.residual == "continued":
        continuation = read_continuation(settings, network, weights, start)
        optimizer = build_continued_optimizer(continuation, settings, network, per_epoch)
        taken_over = continuation.summary(settings.residual_factor)
    step = build_search_step(settings, network, basis, per_epoch, optimizer=optimizer)
    first = step.state
    remembered = [] if optimizer is None else list(optimizer.get_parameters())  # the rates too
    begin = to_arrays(remembered)

    def run(out: Path, resume: bool) -> None:
        from_arrays(remembered, begin, "the beginning")
        from_arrays(network.get_parameters(), start, "WEIGHTS")
        step.state = first
        with open_session(out, settings, ALONE, resume=resume) as session:
            search = Search(session, settings, network, step, images, CLASSIFICATION, basis, {}, taken_over, 1_000_000)
            if not search.restore([*allowed]):
                search.put_start(CheckpointSeries.open(weights.parent / "checkpoint_pca"))
            search.run()

    return run
