"""Find the checkpoints to merge in folders, files or globs, order them by training step, and compare them."""

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path

from dimred.averaging.mean import is_constant
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries, read_manifest
from dimred.checkpoints.stored_tensor import reading
from dimred.errors import CheckpointError, ConfigError, SeriesError, check_choice, check_number, check_type, shown
from dimred.merging.folder import checkpoints_in, distinct, index_files, read_one, weight_files
from dimred.merging.lora import check_adapters
from dimred.merging.order import ORDERS, steps_of
from dimred.merging.saved_network import SavedNetwork
from dimred.run_files.run_names import MANIFEST

_log = logging.getLogger(__name__)

Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def open_checkpoints(
    sources: Sources,
    order: str = "step",
    *,
    last: int | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    layout: WeightLayout | None = None,
) -> list[SavedNetwork]:
    """Open the checkpoints in ``sources``, and check that they are of one network.

    Args:
        sources: one folder of checkpoints; or any number of files, folders of shards and globs.
        order: what to sort by: ``step``, from the manifest or the names; ``name``; or ``mtime`` (see ``steps_of``).
        last: number of checkpoints to open, the newest of those between the steps; None for all.
        from_step, to_step: first and last step to open; None for no limit. Other checkpoints are not read.
        layout: which entries are weights; for the default see ``trainable_layout``.

    Returns:
        The checkpoints, the oldest first; without limits at least two.

    Raises:
        ConfigError: ``order``, ``last`` or a step is not allowed, there is no checkpoint, or the names don't show the
            order.
        SeriesError: there is only one checkpoint, none is left between the steps, or a manifest is damaged.
        CheckpointError: a file can't be read, is damaged or a pickle, or is not of the same network as the last.
    """
    check_choice("order", order, ORDERS)
    texts = list_sources(sources)
    if not texts:
        raise ConfigError("CHECKPOINTS is empty; give a folder, or two or more files")
    steps: list[int] | None = None
    with reading(texts[0]):
        paths = distinct(path for source in texts for path in find_paths(source))
        if len(paths) == 1 and paths[0].is_dir() and not index_files(paths[0]):
            if (paths[0] / MANIFEST).exists():
                series = CheckpointSeries.open(paths[0])
                paths = list(series.paths)
                steps = series.steps
            else:
                paths = checkpoints_in(paths[0], order, "CHECKPOINTS")
        if len(paths) < 2:
            read_one(paths[0])  # its error, if there is one, says more
            raise SeriesError(f"CHECKPOINTS is {texts[0]!r}, which is one checkpoint; give two or more")
        if steps is None or order != "step":
            steps = steps_of({path: weight_files(path) for path in paths}, order)
    in_order = sorted(zip(steps, paths, strict=True), key=lambda pair: pair[0])
    selected = _select(in_order, last, from_step, to_step)
    with reading(texts[0]):
        checkpoints = [replace(read_one(path), step=step, given_layout=layout) for step, path in selected]
    if layout is not None:
        for checkpoint in checkpoints:
            checkpoint.check_fit(layout)
    check_adapters(checkpoints)
    for checkpoint in checkpoints[:-1]:
        difference = first_difference(checkpoint, checkpoints[-1])
        if difference:
            raise CheckpointError(f"The checkpoints belong to different networks: {difference}.")
    return checkpoints


def as_named(checkpoints: Sequence[SavedNetwork], sources: Sequence[str]) -> list[int]:
    """Return the place of each checkpoint in the order in which the user named them, from 0.

    The checkpoints of one folder or glob are in the order of their steps.

    Args:
        checkpoints: some or all of the checkpoints that ``open_checkpoints`` returns for these sources.
        sources: the sources, as from ``list_sources``.

    Raises:
        ConfigError: there are several sources, and one of them stands for more than one checkpoint.
    """
    if len(sources) == 1:
        return list(range(len(checkpoints)))
    named: list[Path] = []
    for source in sources:
        paths = find_paths(source)
        if len(paths) > 1:
            raise ConfigError(
                f"profile gives a coefficient for each checkpoint, but {source!r} stands for {len(paths)} of "
                "them, and is not the only argument; name each checkpoint, in the order of the coefficients",
                argument="profile",
            )
        named += paths
    in_order = sorted(checkpoints, key=lambda checkpoint: named.index(checkpoint.path))
    return [in_order.index(checkpoint) for checkpoint in checkpoints]


def list_sources(sources: Sources) -> list[str]:
    """Return one path or several paths as a list of strings; ConfigError for anything else."""
    check_type("CHECKPOINTS", sources, (str, os.PathLike, Iterable), "a path or several paths")
    return [str(source) for source in ([sources] if isinstance(sources, str | os.PathLike) else sources)]


def _select(
    in_order: Sequence[tuple[int, Path]], last: int | None, from_step: int | None, to_step: int | None
) -> Sequence[tuple[int, Path]]:
    """Select the newest ``last`` of the pairs (step, path) between two steps; see ``open_checkpoints``."""
    if last is not None:
        check_number("last", last, at_least=1, whole=True)
    for name, step in (("from_step", from_step), ("to_step", to_step)):
        if step is not None:
            check_number(name, step, at_least=0)
    first = in_order[0][0]
    newest = in_order[-1][0]
    low = first if from_step is None else from_step
    high = newest if to_step is None else to_step
    in_range = [(step, path) for step, path in in_order if low <= step <= high]
    if not in_range:
        raise SeriesError(
            f"from_step={low} and to_step={high} leave none of the {len(in_order)} checkpoints, whose steps are "
            f"{first} to {newest}",
            settings=[f"from_step={low}", f"to_step={high}"],
        )
    if last is not None and last > len(in_range):
        _log.info(f"there are only {len(in_range)} checkpoints, not {last}; all of them are taken")
    return in_range if last is None else in_range[-last:]


def first_difference(checkpoint: SavedNetwork, other: SavedNetwork) -> str | None:
    """Describe the first name, shape or type in which two checkpoints differ, naming both; None if there is none."""
    entries = [{*it.layout.names, *it.statistics, *it.integers} for it in (checkpoint, other)]
    for name in sorted(entries[0] | entries[1]):
        if name not in entries[1]:
            return f"{shown(name)} is in {checkpoint.path}, but not in {other.path}"
        if name not in entries[0]:
            return f"{shown(name)} is in {other.path}, but not in {checkpoint.path}"
        tensor = checkpoint.tensors[name]
        other_tensor = other.tensors[name]
        for property_name in ("shape", "dtype"):
            value = getattr(tensor, property_name)
            other_value = getattr(other_tensor, property_name)
            if value != other_value:
                return (
                    f"{shown(name)} has the {property_name} {value} in {checkpoint.path} and {other_value} in "
                    f"{other.path}"
                )
    return None


def check_integers(checkpoints: Sequence[SavedNetwork]) -> None:
    """Check that integer tensors are equal in all checkpoints: they have no mean, and are copied from one of them.

    Raises:
        CheckpointError: an integer or bool tensor differs between two checkpoints, or a file can't be read.
    """
    for name in checkpoints[-1].integers:
        if len(checkpoints) > 1 and not is_constant(checkpoints, name):
            raise CheckpointError(
                f"{name!r} has the type {checkpoints[-1].tensors[name].dtype} and differs between the checkpoints; "
                "integers, such as quantised weights, can't be averaged: merge the checkpoints from before they were "
                "quantised, or save them without this tensor"
            )


def layout_from(path: Path) -> WeightLayout:
    """Return the layout of the weights in a checkpoint of a network alone, or in a ``manifest.json``.

    Raises:
        CheckpointError, SeriesError: it can't be read, or a checkpoint holds more than a network.
    """
    return read_manifest(path)[0] if path.suffix == ".json" else read_one(path).layout


def log_copied(template: SavedNetwork, weights: Collection[str]) -> None:
    """Log which arrays of floats are copied from the template: those that are neither weights nor statistics."""
    averaged = {*weights, *template.statistics}
    names = [name for name, tensor in template.tensors.items() if tensor.is_float and name not in averaged]
    if names:
        _log.info(f"copied from {template.path} and not averaged: {len(names)} arrays, such as {names[0]!r}")


def find_paths(source: str) -> list[Path]:
    """Return ``source`` as a path, or the paths that match it as a glob; ConfigError if there are none.

    As in a shell, ``*`` matches no hidden files.
    """
    path = Path(source)
    # Path.glob would match hidden files, too.
    paths = [path] if path.exists() else sorted(map(Path, glob(source, recursive=True)))  # noqa: PTH207
    if not paths:
        raise ConfigError(f"CHECKPOINTS is {source!r}: there is no such file or folder, and nothing matches it")
    return paths
