"""A rolling series of weight snapshots in one folder, and its ``manifest.json``."""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from dimred.checkpoints.checkpoint_io import SUFFIXES, write_checkpoint
from dimred.checkpoints.layout import WeightLayout, as_weight, weights_digest
from dimred.checkpoints.stored_tensor import reading
from dimred.errors import BasisMismatchError, ConfigError, SeriesError, check_choice, check_number, check_type, shown
from dimred.io.atomic import make_folder, remove_leftovers
from dimred.io.checksums import read_checksummed, write_checksummed
from dimred.io.file_format import SERIES
from dimred.run_files.run_names import (
    ABOVE_SNAPSHOTS,
    MANIFEST,
    epochs_and_steps,
    network_of,
    snapshots_below,
    unplaced_in,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SnapshotEntry:
    """One snapshot of a series."""

    file: str  # its name inside the folder
    step: int  # steps made when it was taken, counted from the start of training
    epoch: int  # the epoch in which it was taken
    bytes: int  # size of the file
    digest: str = ""  # vector_digest of its weights; empty if the folder has no manifest


def check_series_options(keep: Any, prefix: Any, format: Any) -> None:
    """Check how many snapshots a series is to keep, and how their files are to be named; see ``CheckpointSeries``."""
    if keep is not None:
        check_number("keep", keep, at_least=1, whole=True, usual="None keeps all snapshots")
    check_type("prefix", prefix, str, "a text, with which the file names begin")
    if not prefix or any(sign in prefix for sign in "/\\\0"):
        raise ConfigError(
            f"prefix is {prefix!r}; it begins the file names, so it can't be empty or have a slash.", argument="prefix"
        )
    check_choice("format", format, [suffix[1:] for suffix in SUFFIXES])


@dataclass(eq=False, repr=False)
class CheckpointSeries:
    """The snapshots of a network's trainable weights in a folder, ordered by step.

    ``open`` reads a series; ``create`` and ``resume`` return a ``SeriesWriter``, which adds to it.

    Attributes:
        directory: the folder.
        layout: layout of every snapshot; None before the first one, and for a folder without a manifest.
        entries: the snapshots, oldest first.
    """

    directory: Path
    layout: WeightLayout | None
    entries: tuple[SnapshotEntry, ...]

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, argument: str = "directory") -> "CheckpointSeries":
        """Open the series in a folder to read it.

        Args:
            directory: a folder with a manifest; or with files of one network named NAME-EPOCH_STEP, as MindSpore's
                ``ModelCheckpoint`` leaves them.
            argument: the user's name for ``directory``, for errors.

        Raises:
            ConfigError: ``directory`` is not a path.
            SeriesError: the folder is missing, is above the folder of a run's snapshots, or has a damaged manifest; or
                it has no manifest, and no files with a snapshot's name, or those of several networks.
            CheckpointError: the folder can't be read.
        """
        check_type(argument, directory, (str, os.PathLike), "the path of a folder")
        folder = Path(directory)
        if not folder.is_dir():
            raise SeriesError(f"{folder} is not a folder; give the folder that stage 1 wrote its snapshots to.")
        below = snapshots_below(folder, ABOVE_SNAPSHOTS)
        if below is not None:
            raise SeriesError(
                f"{argument} is {str(folder)!r}, which is not a folder of snapshots; the snapshots of this run are in "
                f"{str(below)!r}.",
                argument=argument,
            )
        if (folder / MANIFEST).exists():
            return cls(folder, *read_manifest(folder / MANIFEST))
        with reading(folder):
            return cls(folder, None, _without_manifest(folder, argument))

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        keep: int | None = 40,
        *,
        prefix: str = "weights",
        format: str = "ckpt",
    ) -> "SeriesWriter":
        """Begin a series in a folder that has none.

        Args:
            directory: the folder, made if missing.
            keep: how many snapshots stay, the newest; None keeps all.
            prefix: files are named ``{prefix}-{epoch}_{step}.{format}``.
            format: format of new snapshots, ``ckpt`` or ``safetensors``.

        Raises:
            ConfigError: ``directory`` is a file or not a path, ``keep`` is not a whole number above 0, ``prefix`` is
                not a file name, or ``format`` is unknown.
            SeriesError: the folder has snapshots, or a damaged manifest.
        """
        writer = SeriesWriter(directory, keep, prefix, format)
        if writer.entries or writer.unlisted():
            raise SeriesError(
                f"{writer.directory} has snapshots of an earlier training. Name another folder, remove this one, or "
                "continue them with CheckpointSeries.resume or SnapshotCallback's argument resume."
            )
        return writer

    @classmethod
    def resume(
        cls,
        directory: str | os.PathLike[str],
        keep: int | None = 40,
        *,
        prefix: str = "weights",
        format: str = "ckpt",
    ) -> "SeriesWriter":
        """Continue the series in a folder where it ended, or begin one if there is none.

        Args:
            directory, keep, prefix, format: as for ``create``.

        Raises:
            ConfigError: as for ``create``.
            SeriesError: the manifest is damaged, or there are several snapshots of this prefix and no manifest.
        """
        writer = SeriesWriter(directory, keep, prefix, format)
        # A single snapshot may be left by a writer that was killed before its first manifest.
        if writer.layout is None and len(writer.unlisted()) > 1:
            raise SeriesError(
                f"{writer.directory} has snapshots, but no {MANIFEST} that lists them; restore it, or move them away "
                "to begin a new series there."
            )
        return writer

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the snapshots' files, oldest first."""
        return tuple(self.directory / entry.file for entry in self.entries)

    @property
    def steps(self) -> list[int]:
        """Return the number of updates before each snapshot, oldest first."""
        return [entry.step for entry in self.entries]

    def __len__(self) -> int:
        return len(self.entries)

    def select(self, last: int | None = None, until_epoch: int | None = None) -> "CheckpointSeries":
        """Return the last ``last`` snapshots up to epoch ``until_epoch`` as a series; None sets no limit.

        Raises:
            ConfigError: ``last`` is not a whole number above 0, or ``until_epoch`` is not a whole number of at least 0.
            SeriesError: nothing is left.
        """
        if last is not None:
            check_number("last", last, at_least=1, whole=True)
        if until_epoch is not None:
            check_number("until_epoch", until_epoch, at_least=0, whole=True)
        entries = tuple(entry for entry in self.entries if until_epoch is None or entry.epoch <= until_epoch)
        if not entries:
            until = "" if until_epoch is None else f" up to epoch {until_epoch}"
            raise SeriesError(f"{self.directory} has no snapshots{until}.")
        return CheckpointSeries(self.directory, self.layout, entries[-(last or 0) :])


class SeriesWriter(CheckpointSeries):
    """A series that grows and keeps its newest snapshots; one process at a time may write one.

    ``CheckpointSeries.create`` and ``CheckpointSeries.resume`` make it, and describe the arguments.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int | None, prefix: str, format: str) -> None:
        check_type("directory", directory, (str, os.PathLike), "the path of a folder")
        check_series_options(keep, prefix, format)
        folder = Path(directory)
        if folder.is_file():
            raise ConfigError(
                f"directory is {str(directory)!r}, which is a file; name a folder for the snapshots.",
                argument="directory",
            )
        make_folder(folder)
        remove_leftovers(folder, is_only_writer=True)
        if (folder / MANIFEST).exists():
            super().__init__(folder, *read_manifest(folder / MANIFEST))
        else:
            super().__init__(folder, None, ())
        self.keep = keep
        self.prefix = prefix
        self._suffix = f".{format}"

    def append(self, weights: Mapping[str, Any], step: int, epoch: int, *, step_in_epoch: int | None = None) -> Path:
        """Add a snapshot and return its path: write its file, then the manifest, then remove snapshots beyond ``keep``.

        A process killed between any two of these leaves a series that opens, without the new snapshot or with it.

        Args:
            weights: the trainable weights in order: name -> MindSpore's parameter, or anything that ``numpy.asarray``
                takes, such as PyTorch's ``weight.detach()``; NumPy's bfloat16 is stored as float32.
            step: steps made so far; more than at the last snapshot.
            epoch: the current epoch, for the file name.
            step_in_epoch: replaces ``step`` in the file name, because MindSpore's names count steps within an epoch.

        Raises:
            ConfigError: a step or ``epoch`` is not a whole number of at least 0, or the weights are not float arrays
                by name.
            CheckpointError: a weight is not finite; nothing is written.
            SeriesError: the step, the layout or the file's name does not fit the series.
            BasisMismatchError: there are no weights.
            OSError: the folder is not writable, or is full.
        """
        check_type("weights", weights, Mapping, "a mapping: name -> array, tensor or parameter")
        place = step if step_in_epoch is None else step_in_epoch
        for name, number in (("step", step), ("epoch", epoch), ("step_in_epoch", place)):
            check_number(name, number, at_least=0, whole=True)
        if self.entries and step <= self.entries[-1].step:
            remedy = "Use another folder."
            if step > 0:
                remedy = (
                    f"To continue from an earlier checkpoint, call rewind({step - 1}) first; for another run, use "
                    "another folder."
                )
            raise SeriesError(
                f"step is {step}, but {self.directory} has snapshots up to step {self.entries[-1].step}. {remedy}",
                argument="step",
            )
        arrays = {name: as_weight(name, value) for name, value in weights.items()}
        layout = WeightLayout.from_weights(arrays)
        if self.layout is not None and self.layout != layout:
            raise SeriesError(
                f"The weights no longer match the snapshots in {self.directory}: "
                f"{self.layout.first_difference(layout, 'the snapshots', 'the weights')}. Use another folder for "
                "another network."
            )
        path = self.directory / f"{self.prefix}-{epoch}_{place}{self._suffix}"
        if any(path.name == entry.file for entry in self.entries):
            raise SeriesError(f"{path} is a snapshot already; give each its own epoch and step.")
        write_checkpoint(path, arrays)
        digest = weights_digest(arrays.values())
        entry = SnapshotEntry(path.name, int(step), int(epoch), path.stat().st_size, digest)
        entries = (*self.entries, entry)
        self._replace(layout, entries if self.keep is None else entries[-self.keep :])
        return path

    def rewind(self, step: int) -> None:
        """Remove the snapshots taken after ``step``, to resume training there, and files that a killed writer left.

        Raises:
            ConfigError: ``step`` is not a whole number of at least 0.
        """
        check_number("step", step, at_least=0, whole=True)
        if self.layout is not None:
            self._replace(self.layout, tuple(entry for entry in self.entries if entry.step <= step))
        for path in self.unlisted():
            path.unlink(missing_ok=True)

    def unlisted(self) -> list[Path]:
        """List files that are named like snapshots of this series but are not among its entries."""
        names = {entry.file for entry in self.entries}
        paths = [path for path in self.directory.iterdir() if path.suffix in SUFFIXES and path.name not in names]
        return [path for path in paths if network_of(path.stem) == self.prefix]

    def _replace(self, layout: WeightLayout, entries: tuple[SnapshotEntry, ...]) -> None:
        items = [asdict(entry) for entry in entries]
        write_checksummed(self.directory / MANIFEST, SERIES, {"layout": layout.to_json(), "entries": items})
        old_names = {entry.file for entry in self.entries} - {entry.file for entry in entries}
        self.layout = layout
        self.entries = entries
        for name in old_names:
            with suppress(OSError):  # as on a network disk; the new snapshot matters more, and rewind removes the file
                (self.directory / name).unlink(missing_ok=True)


def read_manifest(path: Path) -> tuple[WeightLayout, tuple[SnapshotEntry, ...]]:
    """Read the layout and the entries of a ``manifest.json``.

    Raises:
        SeriesError: it is damaged, of another version, or names a file outside its folder.
    """
    try:
        content = read_checksummed(path, SERIES)
        layout = WeightLayout.from_json(content.get("layout"))
        items = content.get("entries")
        entries = tuple(_entry(item) for item in (items if isinstance(items, list) else [None]))
        for before, after in pairwise(entries):
            if after.step <= before.step:
                raise ValueError(f"step {after.step} ({after.file}) comes after step {before.step}")
    except (OSError, ValueError, BasisMismatchError) as error:
        why = "Restore it, or remove it to have the folder read by file names"
        raise SeriesError(f"{path} can't be used ({str(error).rstrip('.')}). {why}.") from None
    return layout, entries


def _entry(item: Any) -> SnapshotEntry:
    types = {field.name: field.type for field in fields(SnapshotEntry)}
    has_types = isinstance(item, dict) and {key: type(value) for key, value in item.items()} == types
    if not has_types or min(item["step"], item["epoch"], item["bytes"]) < 0:
        raise ValueError(f"an entry is {shown(item)}")
    name = item["file"]
    if any(sign in name for sign in "/\0") or Path(name).suffix not in SUFFIXES:
        raise ValueError(f"it lists {shown(name)}, which is not the name of a snapshot in the same folder")
    return SnapshotEntry(**item)


def _without_manifest(folder: Path, argument: str) -> tuple[SnapshotEntry, ...]:
    """List the files of a folder without a manifest that are named NAME-EPOCH_STEP, in the order of training."""
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    paths = [path for path in files if network_of(path.stem) is not None]
    if not paths:
        raise SeriesError(
            f"{argument} is {str(folder)!r}, which has neither a {MANIFEST} nor files named NAME-EPOCH_STEP.ckpt or "
            ".safetensors, as MindSpore's ModelCheckpoint names them; rename its files like this, or add each network "
            "to a new series in Python: dimred.CheckpointSeries.create(folder).append(weights, step=..., epoch=...)",
            argument=argument,
        )
    keys = epochs_and_steps([path.stem for path in paths])
    others = [path for path in files if path not in paths]
    if unplaced := unplaced_in([path.stem for path in paths], [path.stem for path in others]):
        raise SeriesError(
            f"{argument} is {str(folder)!r}, where {unplaced!r} is not named NAME-EPOCH_STEP as the snapshots are, so "
            "its step is not known; rename it, or move it away",
            argument=argument,
        )
    for path in others:
        _log.info(f"{path} is not named NAME-EPOCH_STEP, and is passed over")
    entries = [
        SnapshotEntry(path.name, step, epoch, path.stat().st_size)
        for path, (epoch, step) in zip(paths, keys, strict=True)
    ]
    return tuple(sorted(entries, key=lambda entry: entry.step))
