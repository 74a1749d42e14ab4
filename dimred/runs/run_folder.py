"""The folder of a run: its lock, what may be in it, and which changes a resumed run accepts."""

import json
import logging
import os
import platform
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dimred.checkpoints.states import VAL_LOSSES, RunState
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig, unknown_key, with_new_keys
from dimred.data.batches import Batches
from dimred.errors import ConfigError, RunError, shown
from dimred.io.atomic import FolderLock, atomic_write, remove_leftovers, writable
from dimred.io.run_names import (
    BASIS_METADATA,
    CONFIG,
    METRICS,
    SNAPSHOTS,
    STAGE_1_CHECKPOINTS,
    STAGE_2_CHECKPOINTS,
    STATES,
    VERSIONS,
    epochs_of_checkpoint,
    full_checkpoints,
    results_in,
)

_log = logging.getLogger(__name__)

_BEGINNINGS = (CONFIG, BASIS_METADATA)  # what a run writes first; the basis may be fitted before the rest begins


@contextmanager
def run_folder(out: Path) -> Iterator[Path]:
    """Make and lock a run's folder inside the block, which gets its path.

    If the block fails without results, the lock is removed, and the folder if it is empty.

    Args:
        out: the folder.

    Raises:
        ConfigError: the folder can't be made.
        RunError: another process is at work there.
    """
    with ExitStack() as stack:
        with writable("--out", out):
            lock = stack.enter_context(FolderLock(out, f"--out is {str(out)!r}"))
        try:
            remove_leftovers(out)
            yield out
        except BaseException:
            if out.is_dir() and not results_in(out):
                lock.remove()
            raise


def check_run_folder(out: Path, *, resume: bool) -> None:
    """Raise ConfigError if a run may not use ``out`` because of what is in it.

    Args:
        out: the folder, which need not exist.
        resume: whether a run that was begun there may be continued.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"--out is {str(out)!r}, which is not a folder; name another one")
    if results_in(out) and not resume:
        raise ConfigError(
            f"--out is {str(out)!r}, which holds earlier results; go on with them by --resume, name another folder, or "
            "move them away"
        )
    if results_in(out) and not any((out / name).exists() for name in _BEGINNINGS):
        raise ConfigError(f"--out is {str(out)!r}, which holds something other than a run; name another folder")


def say_new_run(out: Path) -> None:
    """Log that a new run begins though one was to be resumed; refuse it where a run has lost its states.

    It would remove what that run has written. A run saves its first state before its first record, and before it writes
    more than one epoch's snapshots.

    Raises:
        RunError: the folder has what a run writes later.
    """
    records = out / METRICS
    later = METRICS if records.is_file() and records.stat().st_size else _later_file(out)
    if later is not None:
        raise RunError(
            f"--out is {str(out)!r}, whose {later} tells of a run, but there is no state in {str(out / STATES)!r} to "
            "go on from; restore that folder, or begin in another one"
        )
    _log.info(f"--resume: there is no state in {out}; a new run begins")


def _later_file(out: Path) -> str | None:
    """Name a checkpoint or folder of snapshots that a run has only after its first state; None if there is none."""
    one, two = (full_checkpoints(out / name) for name in (STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS))
    if files := [*two.values(), *(path for epoch, path in one.items() if epoch > 1)]:
        return str(files[-1].relative_to(out))
    snapshots = out / STAGE_1_CHECKPOINTS / SNAPSHOTS
    names = map(epochs_of_checkpoint, snapshots.iterdir() if snapshots.is_dir() else ())
    return str(snapshots.relative_to(out)) if len({name.epoch for name in names if name}) > 1 else None


_PACKAGES = ("dimred", "mindspore", "numpy", "scikit-learn", "h5py")


def write_versions(folder: Path) -> None:
    """Write ``versions.json``: versions of packages, Python and operating system, and the number of processors.

    Of a run that goes on, the log names those that have changed.
    """
    versions = {name: _version(name) for name in _PACKAGES} | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }
    before = dict(versions)
    with suppress(OSError, ValueError, TypeError):  # there is none yet, or it was damaged, and nothing depends on it
        before |= json.loads((folder / VERSIONS).read_bytes())
    changes = [f"{name} {before[name]} -> {now}" for name, now in versions.items() if before[name] != now]
    if changes:
        _log.info(f"since this run was last started, there have changed: {', '.join(changes)}")
    atomic_write(folder / VERSIONS, json.dumps(versions, indent=2) + "\n")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def digests_of(images: Mapping[str, Batches]) -> dict[str, str]:
    """Describe each split by its size and its digest, so that two descriptions are equal if the data are."""
    return {split: f"{part.size_in_words}, digest {part.digest()[:12]}" for split, part in images.items()}


FREE_KEYS = frozenset({"profile", "read_every_steps", "stage_2"})
"""Keys of a configuration that change nothing of what a run computes."""


def begun_with(stored: Mapping[str, Any], stage: type[StageConfig]) -> dict[str, Any]:
    """Return what a run was begun with, as this version of dimred would have stored it.

    A key that its own version did not have gets its default, and the log names it; ``FREE_KEYS`` are left out.

    Args:
        stored: the identity in a state of the run.
        stage: the model of its configuration.
    """
    whole = {key: value for key, value in with_new_keys(stage, stored).items() if key not in FREE_KEYS}
    known = {*_keys(stored)}
    new = [f"{key} {_text(value)}" for key, value in _values(whole) if key not in known]
    if new:
        _log.info(f"the run was begun with a dimred that lacked some keys, which count as unset: {', '.join(new)}")
    return whole


def check_same_run(
    state: RunState, stage: type[StageConfig], now: Mapping[str, Any], n_bytes: int, allowed: Sequence[str]
) -> None:
    """Check that a run is gone on with as it was begun, see ``begun_with`` and ``refuse_changes``.

    Args:
        state: a state of the run.
        stage: the model of its configuration.
        now: its identity now.
        n_bytes: how much of the records up to the state is left; less is a difference in the key ``metrics.jsonl``.
        allowed: keys that may differ.

    Raises:
        ConfigError: another key has changed, or ``val`` after losses on it were saved.
    """
    before = begun_with(state.values["run"], stage)
    of_records = [{METRICS: f"{length:,} bytes of records"} for length in (state.values["metrics"], n_bytes)]
    refuse_changes(before | of_records[0], {**now, **of_records[1]}, allowed, state.path.parents[1] / CONFIG)
    refuse_another_val(before, now, state.arrays)


_ABSENT = object()  # stands for a key that only one side has


def refuse_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], allowed: Sequence[str], config: Path | None = None
) -> None:
    """Check that two configurations differ only in the keys that are allowed to differ.

    A section against null, an empty mapping against a filled one, and a key that only one side has are differences,
    in both directions.

    Args:
        before: nested values that the run began with.
        now: nested values that it is to go on with.
        allowed: keys that may differ, such as ``epochs``, ``data.batch_size``, or a whole section such as ``schedule``.
        config: the file with the configuration that the run began with, for the error.

    Raises:
        ConfigError: there are other differences, all of which are listed; or ``allowed`` has an unknown key.
    """
    before, now = json.loads(json.dumps(before)), json.loads(json.dumps(now))  # tuples become lists, as in a file
    keys = [*_keys(now), *_keys(before)]
    for key in allowed:
        if key not in keys:
            raise ConfigError(f"--allow-change has an {unknown_key(key, keys)}")
    sections = tuple(f"{key}." for key in allowed)
    differences = [
        one for one in _differences(before, now) if one[0] not in allowed and not one[0].startswith(sections)
    ]
    if differences:
        lines = "".join(f"\n  {key}: {_text(old)} -> {_text(new)}" for key, old, new in differences)
        accept = " ".join(f"--allow-change {key}" for key, _, _ in differences)
        is_in_file = any(
            key.partition(".")[0] in StageTwoConfig.model_fields | StageOneConfig.model_fields
            for key, _, _ in differences
        )
        by = f", which are in --config {shlex.quote(str(config))}" if config and is_in_file else ""
        raise ConfigError(
            f"the run was begun with other values:{lines}\ngive the values it was begun with{by}, or accept the new "
            f"ones with {accept}"
        )


def refuse_another_val(before: Mapping[str, Any], now: Mapping[str, Any], arrays: Iterable[str]) -> None:
    """Refuse any change of ``val`` if a state has losses on the old one, to be compared with new ones.

    Args:
        before, now: identities of the run, with the splits under ``DATA``.
        arrays: names of the state's arrays.

    Raises:
        ConfigError: the split has changed.
    """
    was, now_is = (identity["DATA"].get("val") for identity in (before, now))
    if was != now_is and any(name.startswith(VAL_LOSSES) for name in arrays):
        raise ConfigError(
            f"DATA.val was {was}, and is {now_is}; it can't change on the way, because the run compares what it "
            "measured there sample by sample. Give the split it was begun with, or begin in a new folder"
        )


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, old, new) of the innermost differences; a section against anything else is one difference."""
    if type(before) is type(now) and json.dumps(before, sort_keys=True) == json.dumps(now, sort_keys=True):
        return  # as JSON, because Python takes 1 for True
    if not (isinstance(before, Mapping) and isinstance(now, Mapping) and before and now):
        yield key, before, now
        return
    for name in dict.fromkeys([*before, *now]):
        yield from _differences(before.get(name, _ABSENT), now.get(name, _ABSENT), f"{key}.{name}".lstrip("."))


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")


def _values(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the innermost keys with their values; an empty section is a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    return "null" if value is None else shown(value)
