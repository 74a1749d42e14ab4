"""CheckpointSeries: a rolling window of weight snapshots in one folder."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dimred.errors import ConfigError, SeriesError
from dimred.files.atomic import remove_leftovers
from dimred.files.digest import vector_digest
from dimred.weights.checkpoint_io import write_checkpoint
from dimred.weights.layout import WeightLayout, as_array
from dimred.weights.manifest import MANIFEST, SnapshotEntry, read_manifest, scan_names, write_manifest

__all__ = ["CheckpointSeries", "SnapshotEntry"]


class CheckpointSeries:
    """Snapshots of a network's trainable weights, ordered by step; the newest ``keep`` of them.

    Written by one process, which takes up an existing series where it ended. ``CheckpointSeries.open`` reads
    one.

    Args:
        directory: the folder, made when missing.
        keep: how many snapshots stay; None keeps all.
        prefix: files are named ``{prefix}-{epoch}_{step}.ckpt``.

    Raises:
        ConfigError: ``keep`` is not a whole number above 0, or ``prefix`` is no file name.
        SeriesError: the folder has a damaged manifest.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int | None = 40, *, prefix: str = "weights") -> None:
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise ConfigError(f"keep is {keep!r}; give a whole number of at least 1, or None to keep all snapshots.")
        if not prefix or any(sign in prefix for sign in "/\\\0"):
            raise ConfigError(f"prefix is {prefix!r}; it begins the file names, so it can't be empty or have a slash.")
        self.directory = Path(directory)
        self.keep = keep
        self.prefix = prefix
        self._writable = True
        self.directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.directory)
        self._layout: WeightLayout | None = None
        self._entries: tuple[SnapshotEntry, ...] = ()
        if (self.directory / MANIFEST).exists():
            self._layout, self._entries = read_manifest(self.directory / MANIFEST)

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> "CheckpointSeries":
        """The series in a folder, for reading.

        Without a manifest, files named as MindSpore names them (``name-epoch_step.ckpt``) make the series.

        Raises:
            SeriesError: no such folder, no snapshots in it, snapshots of several runs, or a damaged manifest.
        """
        folder = Path(directory)
        if not folder.is_dir():
            raise SeriesError(f"{folder} is not a folder; give the folder that stage 1 wrote its snapshots to.")
        if (folder / MANIFEST).exists():
            layout, entries = read_manifest(folder / MANIFEST)
            return cls._of(folder, layout, entries)
        return cls._of(folder, None, scan_names(folder))

    @classmethod
    def _of(cls, directory: Path, layout: WeightLayout | None, entries: Sequence[SnapshotEntry]) -> "CheckpointSeries":
        series = cls.__new__(cls)
        series.directory, series.keep, series.prefix = directory, None, ""
        series._writable, series._layout, series._entries = False, layout, tuple(entries)
        return series

    @property
    def entries(self) -> tuple[SnapshotEntry, ...]:
        """The snapshots, oldest first."""
        return self._entries

    @property
    def paths(self) -> tuple[Path, ...]:
        """Their files, oldest first."""
        return tuple(self.directory / entry.file for entry in self._entries)

    @property
    def layout(self) -> WeightLayout | None:
        """The layout of every snapshot; None for a folder without a manifest."""
        return self._layout

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, weights: Mapping[str, Any], step: int, epoch: int, *, step_in_epoch: int | None = None) -> Path:
        """Add a snapshot: write its file, then the manifest, then remove what falls out of the window.

        A process killed between any two of these leaves a series that opens, without the new snapshot or
        with it.

        Args:
            weights: the trainable weights in order: name -> array, tensor or parameter.
            step: applied updates so far; greater than that of the last snapshot.
            epoch: the current epoch, for the file name.
            step_in_epoch: for the file name instead of ``step``, as MindSpore counts.

        Raises:
            SeriesError: the series was opened for reading, the step is not later, or the weights are laid out
                otherwise.
        """
        if not self._writable:
            raise SeriesError(
                f"The series in {self.directory} was opened for reading; use CheckpointSeries(directory)."
            )
        if self._entries and step <= self._entries[-1].step:
            raise SeriesError(
                f"step is {step}, but {self.directory} has snapshots up to step {self._entries[-1].step}. To go on "
                f"from an earlier checkpoint call rewind({step - 1}) first; for another run use another folder."
            )
        layout = WeightLayout.from_weights(weights)
        difference = None if self._layout is None else self._layout.first_difference(layout)
        if difference:
            raise SeriesError(
                f"The weights do not fit the snapshots in {self.directory} (here) any more: {difference}. Use another "
                "folder for another network."
            )
        arrays = {name: as_array(value) for name, value in weights.items()}
        path = self.directory / f"{self.prefix}-{epoch}_{step if step_in_epoch is None else step_in_epoch}.ckpt"
        if any(path.name == entry.file for entry in self._entries):
            raise SeriesError(f"{path} is a snapshot already; give each its own epoch and step.")
        write_checkpoint(path, arrays)
        entry = SnapshotEntry(path.name, step, epoch, path.stat().st_size, vector_digest(arrays.values()))
        entries = (*self._entries, entry)
        self._replace(layout, entries if self.keep is None else entries[-self.keep :])
        return path

    def rewind(self, step: int) -> None:
        """Forget and remove the snapshots taken after ``step``: training goes on from an earlier checkpoint.

        Files of the series' names that the manifest does not list, as a killed writer leaves them, are removed too.

        Raises:
            SeriesError: the series was opened for reading.
        """
        if not self._writable:
            raise SeriesError(
                f"The series in {self.directory} was opened for reading; use CheckpointSeries(directory)."
            )
        if self._layout is not None:
            self._replace(self._layout, tuple(entry for entry in self._entries if entry.step <= step))
        listed = {entry.file for entry in self._entries}
        name = re.compile(rf"{re.escape(self.prefix)}-\d+_\d+\.ckpt")
        for path in self.directory.iterdir():
            if name.fullmatch(path.name) and path.name not in listed:
                path.unlink(missing_ok=True)

    def _replace(self, layout: WeightLayout, entries: tuple[SnapshotEntry, ...]) -> None:
        write_manifest(self.directory, layout, entries)
        gone = {entry.file for entry in self._entries} - {entry.file for entry in entries}
        self._layout, self._entries = layout, entries
        for name in gone:
            (self.directory / name).unlink(missing_ok=True)

    def select(self, skip_first: int = 0, last: int | None = None, every: int = 1) -> "CheckpointSeries":
        """A part of the series, for reading: without the first ones, then the last ones, then every n-th.

        Every n-th is counted back from the newest, which therefore always stays.

        Raises:
            ConfigError: a number is not allowed.
            SeriesError: nothing is left.
        """
        for name, value, least in (("skip_first", skip_first, 0), ("last", last, 1), ("every", every, 1)):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; give a whole number of at least {least}.")
        chosen = self._entries[skip_first:]
        chosen = chosen if last is None else chosen[-last:]
        chosen = chosen[::-1][::every][::-1]
        if not chosen:
            raise SeriesError(
                f"skip_first = {skip_first} leaves none of the {len(self)} snapshots in {self.directory}."
            )
        return self._of(self.directory, self._layout, chosen)
