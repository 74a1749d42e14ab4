"""Find the checkpoints to merge in folders, files or globs, order them by training step, and compare them."""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dimred.averaging.mean import is_constant
from dimred.checkpoints.checkpoint_io import Checkpoint
from dimred.checkpoints.folder import checkpoints_in, index_files, read_one
from dimred.checkpoints.order import check_order, epochs_and_steps
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.stored_tensor import reading
from dimred.errors import CheckpointError, ConfigError, SeriesError, shown
from dimred.io.run_names import MANIFEST
from dimred.merging.lora import check_adapters

_log = logging.getLogger(__name__)

Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_RANDOM_STATE = re.compile(r"(?:^|[./_])(?:seed|rngs?|random|generator)(?=[./_:]|$)", re.IGNORECASE)
_OF_FOLDERS = ("model", "adapter_model", "diffusion_pytorch_model")  # only the names of their folders say more


def open_checkpoints(sources: Sources, order: str = "step") -> list[Checkpoint]:
    """Open the checkpoints in ``sources``, and check that they are of one network.

    Args:
        sources: one folder of checkpoints; or any number of files, folders of shards and globs.
        order: what to sort by: ``step``, from the manifest or the file's or folder's name; ``name``; or ``mtime``.

    Returns:
        At least two checkpoints, the oldest first.

    Raises:
        ConfigError: ``order`` is unknown, there is no checkpoint, or the names don't tell the order.
        SeriesError: there is only one checkpoint, or a manifest is damaged.
        CheckpointError: a file can't be read, is damaged or a pickle, or is not of the same network as the last.
    """
    check_order(order)
    given = listed(sources)
    if not given:
        raise ConfigError("CHECKPOINTS is empty; give a folder, or two or more files")
    steps: list[int] | None = None
    with reading(given[0]):
        paths = [path for source in given for path in matching(source)]
        if len(paths) == 1 and paths[0].is_dir() and not index_files(paths[0]):
            if (paths[0] / MANIFEST).exists():
                series = CheckpointSeries.open(paths[0])
                paths, steps = list(series.paths), series.steps
            else:
                paths = checkpoints_in(paths[0], "CHECKPOINTS")
        found = [*{one.path: one for one in map(read_one, dict.fromkeys(paths))}.values()]
    if len(found) < 2:
        raise SeriesError(f"CHECKPOINTS is {given[0]!r}, which is one checkpoint; give two or more")
    if steps is None or order != "step":
        with reading(given[0]):
            files = {checkpoint.path: checkpoint.files for checkpoint in found}
            steps = [step for _, step in epochs_and_steps(files, order)]
    numbered = zip(found, steps, strict=True)
    ordered = sorted((replace(checkpoint, step=step) for checkpoint, step in numbered), key=lambda one: one.step)
    check_adapters(ordered)
    for checkpoint in ordered[:-1]:
        difference = first_difference(checkpoint, ordered[-1])
        if difference:
            raise CheckpointError(f"The checkpoints are of different networks: {difference}.")
    return ordered


def listed(sources: Sources) -> list[str]:
    """Return one path or several paths as a list of strings."""
    return [str(source) for source in ([sources] if isinstance(sources, str | os.PathLike) else sources)]


def select(
    checkpoints: Sequence[Checkpoint], last: int | None, from_step: int | None, to_step: int | None
) -> list[Checkpoint]:
    """Select checkpoints by their steps.

    Args:
        checkpoints: the checkpoints, oldest first.
        last: number of checkpoints to keep, the newest of those between the steps; None for all.
        from_step, to_step: first and last step to keep; None for no limit.

    Raises:
        ConfigError: ``last`` is below 1.
        SeriesError: no checkpoint is left.
    """
    if last is not None and last < 1:
        raise ConfigError(f"--last is {last}; give a whole number of at least 1")
    low = checkpoints[0].step if from_step is None else from_step
    high = checkpoints[-1].step if to_step is None else to_step
    chosen = [checkpoint for checkpoint in checkpoints if low <= checkpoint.step <= high]
    if not chosen:
        raise SeriesError(
            f"--from-step {low} and --to-step {high} leave none of the {len(checkpoints)} checkpoints, whose steps are "
            f"{checkpoints[0].step} to {checkpoints[-1].step}"
        )
    if last is not None and last > len(chosen):
        _log.info(f"--last is {last}, but there are {len(chosen)} checkpoints; all of them are taken")
    return chosen if last is None else chosen[-last:]


def first_difference(one: Checkpoint, other: Checkpoint) -> str | None:
    """Describe the first name, shape or type in which two checkpoints differ, naming both; None if there is none."""
    averaged = [{*it.layout.names, *it.statistics, *it.integers} for it in (one, other)]
    for name in sorted(averaged[0] | averaged[1]):
        for has, lacks, names in ((one, other, averaged[1]), (other, one, averaged[0])):
            if name not in names:
                return f"{shown(name)} is in {has.path} and not in {lacks.path}"
        here, there = one.tensors[name], other.tensors[name]
        for what in ("shape", "dtype"):
            if getattr(here, what) != getattr(there, what):
                left, right = getattr(here, what), getattr(there, what)
                return f"{shown(name)} has the {what} {left} in {one.path} and {right} in {other.path}"
    return None


def check_integers(checkpoints: Sequence[Checkpoint]) -> None:
    """Check that integer tensors are equal in all checkpoints: they have no mean, and are copied from one of them.

    States of random generators, such as Keras's ``seed_generator_state``, may differ; they are copied from it too.

    Raises:
        CheckpointError: an integer or bool tensor differs between two checkpoints, or a file can't be read.
    """
    for name in checkpoints[-1].integers:
        if len(checkpoints) > 1 and not _RANDOM_STATE.search(name) and not is_constant(checkpoints, name):
            raise CheckpointError(
                f"{name!r} has the type {checkpoints[-1].tensors[name].dtype} and differs between the checkpoints; "
                "integers, such as quantised weights, can't be averaged: merge the checkpoints from before they were "
                "quantised, or save them without this tensor"
            )


def label(checkpoint: Checkpoint) -> str:
    """Return a short name for a checkpoint: its file's, or its folder's."""
    return checkpoint.path.parent.name if checkpoint.path.stem in _OF_FOLDERS else checkpoint.path.name


def is_folder(checkpoint: Checkpoint) -> bool:
    """Return whether frameworks load the checkpoint as a folder, with a configuration beside the weights."""
    return checkpoint.path.is_dir() or checkpoint.path.stem in _OF_FOLDERS


def matching(source: str) -> list[Path]:
    """Return ``source`` as a path, or the paths that match it as a glob; ConfigError if there are none."""
    path = Path(source)
    found = [path] if path.exists() else []
    with suppress(ValueError):  # raised for a "**" beside other characters
        found = found or sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    if not found:
        raise ConfigError(f"CHECKPOINTS is {source!r}: there is no such file or folder, and nothing matches it")
    return found
