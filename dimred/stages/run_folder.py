"""Open the folder of a run on one rank: lock it, find the state to resume from, and open the files to write."""

import json
import logging
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dimred.config import StageConfig, config_text, unknown_key
from dimred.data.batches import Batches
from dimred.distributed.ranks import Ranks
from dimred.distributed.share import share
from dimred.errors import ConfigError, shown
from dimred.io.atomic import FolderLock, atomic_write, remove_leftovers, writable
from dimred.io.metrics_file import read_metrics
from dimred.io.run_names import (
    BASIS_METADATA,
    CONFIG,
    METRICS,
    MINDSPORE_LOG,
    PHASES,
    PROFILE,
    TENSORBOARD,
    VERSIONS,
    results_in,
)
from dimred.launch.signals import StopSignals
from dimred.models.factory import call_factory
from dimred.stages.device import StepProfiler, redirect_native_stderr
from dimred.stages.faults import translate_errors
from dimred.stages.records import MetricsLog, TensorBoard, cut_metrics
from dimred.stages.states import VAL_LOSSES, RunState, RunStates, read_state

_log = logging.getLogger(__name__)

# What a run writes first; the basis may be fitted before the rest begins.
_BEGINNINGS = (CONFIG, PHASES, BASIS_METADATA)


@dataclass(eq=False)
class Session:
    """The files that every run has, and the rules for resuming a run.

    Attributes:
        out: folder of the run, locked by the caller.
        settings: the resolved configuration.
        ranks: all of them make a session; rank 0's states count, and rank 0 alone saves.
        signals: the stop signals, entered by the caller.
        profiler: the profiler, entered by the caller.
        is_kept: whether the run's files are to be used; otherwise no next command is named.
        identity: what a resumed run must have in common with the one that began; a program adds its data.
    """

    out: Path
    settings: StageConfig
    ranks: Ranks
    signals: StopSignals
    profiler: StepProfiler
    is_kept: bool = True

    def __post_init__(self) -> None:
        self.states = RunStates(self.out)
        self.metrics_file = self.out / METRICS
        self.identity: dict[str, Any] = self.settings.model_dump(mode="json", exclude={"profile", "read_every"}) | {
            "--devices": self.ranks.group_size
        }

    def identify_data(self, images: Mapping[str, Batches]) -> None:
        """Add the splits that the run reads to its identity.

        Args:
            images: split -> its batches. For a digest, rank 0 reads names and sizes, or the first and the last sample.
        """
        self.identity["DATA"] = self.ranks.run_on_rank_zero(
            lambda: {split: f"{part.size_in_words}, digest {part.digest()[:12]}" for split, part in images.items()}
        )

    def newest_state(self, allowed: Sequence[str]) -> RunState | None:
        """Read the newest state, on every rank; None if there is none.

        Raises:
            ConfigError: on rank 0, if a key differs that may not, or ``val`` differs after losses on it were saved.
            RunError: there are states, but none can be read; a DimredError on the other ranks.
        """
        newest = self.ranks.run_on_rank_zero(lambda: self.states.newest(_log.info))
        found: RunState | None = share(newest, self.ranks, read_state)
        if found is not None and self.ranks.is_rank_zero:
            before = found.progress["run"]
            refuse_changes(before, self.identity, allowed)
            self._refuse_another_val(before, found)
        return found

    def _refuse_another_val(self, before: Mapping[str, Any], found: RunState) -> None:
        """Refuse any change of ``val`` if the state has losses on the old one, to be compared with new ones."""
        then, now = (identity["DATA"].get("val") for identity in (before, self.identity))
        if then != now and any(name.startswith(VAL_LOSSES) for name in found.arrays):
            raise ConfigError(
                f"DATA.val was {then}, and is {now}; it can't change on the way, because the run compares what it "
                "measured there sample by sample. Give the split it was begun with, or begin in a new folder"
            )

    def write_configuration(self) -> None:
        """Write ``config.yaml`` and ``versions.json``."""
        atomic_write(self.out / CONFIG, config_text(self.settings))
        write_versions(self.out)

    def open_metrics(self, length: int) -> MetricsLog:
        """Open the metrics file, cut to ``length``, its bytes when the state was saved; 0 for a new run."""
        cut_metrics(self.metrics_file, length, self.ranks)
        listeners: list[Any] = []
        if self.settings.tensorboard and self.ranks.is_rank_zero:
            listeners.append(TensorBoard(self.out / TENSORBOARD, read_metrics(self.metrics_file)))
        if self.settings.callback is not None and self.ranks.is_rank_zero:
            listeners.append(call_factory(self.settings.callback, self.out, key="callback"))
        return MetricsLog(self.metrics_file, listeners)


@contextmanager
def open_session(out: Path, settings: StageConfig, ranks: Ranks, *, is_kept: bool = True) -> Iterator[Session]:
    """Make or reopen the folder of a run, hold its lock, and turn the run's faults into errors with a remedy.

    Args:
        out: the folder, which must have passed ``check_run_folder``.
        settings, ranks, is_kept: see ``Session``.

    Raises:
        ConfigError: the folder can't be made.
        RunError: another process is at work there.
        FaultError, StoppedError: from the block, see ``translate_errors``.
    """
    with (
        run_folder(out),
        redirect_native_stderr(out / MINDSPORE_LOG),
        StopSignals() as signals,
        translate_errors(RunStates(out) if ranks.is_rank_zero else None, is_kept=is_kept),
        StepProfiler(settings.profile, out / PROFILE) as profiler,
    ):
        _log.debug("preparing the run")
        yield Session(out, settings, ranks, signals, profiler, is_kept)


@contextmanager
def run_folder(out: Path) -> Iterator[Path]:
    """Make and lock a run's folder; if the run fails without results, remove the lock, and the folder if it is empty.

    Raises:
        ConfigError: the folder can't be made.
        RunError: another process is at work there.
    """
    with ExitStack() as stack:
        with writable("--out", out):
            lock = stack.enter_context(FolderLock(out, f"--out is {str(out)!r}"))
        try:
            remove_leftovers(out)  # under the lock, because they may be those of a run on a host of the same name
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


_PACKAGES = ("dimred", "mindspore", "numpy", "scikit-learn", "h5py")


def write_versions(folder: Path) -> None:
    """Write ``versions.json``: versions of packages, Python and operating system, and the number of processors."""
    found = {name: _version(name) for name in _PACKAGES} | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }
    atomic_write(folder / VERSIONS, json.dumps(found, indent=2) + "\n")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


_ABSENT = object()  # stands for a key that only one side has


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Check that two configurations differ only in the keys that are allowed to differ.

    A section against null, an empty mapping against a filled one, and a key that only one side has are differences,
    in both directions.

    Args:
        before: nested values that the run began with.
        now: nested values that it is to go on with.
        allowed: keys that may differ, such as ``epochs``, ``data.batch_size``, or a whole section such as ``schedule``.

    Raises:
        ConfigError: there are other differences, all of which are listed; or ``allowed`` has an unknown key.
    """
    before, now = json.loads(json.dumps(before)), json.loads(json.dumps(now))  # tuples become lists, as in a file
    known = [*_keys(now), *_keys(before)]
    for key in allowed:
        if key not in known:
            raise ConfigError(f"--allow-change has an {unknown_key(key, known)}")
    sections = tuple(f"{key}." for key in allowed)
    changed = [one for one in _differences(before, now) if one[0] not in allowed and not one[0].startswith(sections)]
    if changed:
        lines = "".join(f"\n  {key}: {_text(old)} -> {_text(new)}" for key, old, new in changed)
        accept = " ".join(f"--allow-change {key}" for key, _, _ in changed)
        raise ConfigError(
            f"the run was begun with other values:{lines}\ngive the values it was begun with, or accept the new ones "
            f"with {accept}"
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


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    return "null" if value is None else shown(value)
