"""``manifest.json``: what a folder of snapshots holds, ordered by step."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from dimred.errors import BasisMismatchError, SeriesError, shown
from dimred.files.checksummed_json import read_checksummed, write_checksummed
from dimred.files.run_names import MANIFEST
from dimred.weights.checkpoint_io import SUFFIXES
from dimred.weights.layout import WeightLayout

__all__ = ["MANIFEST", "SnapshotEntry", "read_manifest", "scan_names", "write_manifest"]

_FORMAT, _VERSION = "dimred snapshot series", 2
_NAME = re.compile(r"(?P<prefix>.+)-(?P<epoch>\d{1,18})_(?P<step>\d{1,18})\.(ckpt|safetensors)")


@dataclass(frozen=True)
class SnapshotEntry:
    """One snapshot of a series.

    Attributes:
        file: its name inside the folder.
        step: applied updates when it was taken, counted from the start of training.
        epoch: the epoch it was taken in.
        bytes: the size of the file.
        digest: the ``WeightDigest`` of its weights; empty when the folder has no manifest.
    """

    file: str
    step: int
    epoch: int
    bytes: int
    digest: str = ""


def write_manifest(directory: Path, layout: WeightLayout, entries: Sequence[SnapshotEntry]) -> None:
    """Write the manifest, whole or not at all."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "layout": layout.to_json(),
        "entries": [asdict(entry) for entry in entries],
    }
    write_checksummed(directory / MANIFEST, content)


def read_manifest(path: Path) -> tuple[WeightLayout, tuple[SnapshotEntry, ...]]:
    """The layout and the entries in a manifest file.

    Raises:
        SeriesError: it is damaged, of an unknown version, names a file outside its folder, or is out of
            order.
    """
    try:
        content = read_checksummed(path)
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if content.get("format") != _FORMAT:
        raise _damaged(path, f"it is not a {_FORMAT!r}")
    if content.get("version") != _VERSION:
        raise SeriesError(
            f"{path} has version {shown(content.get('version'))}; this dimred reads version {_VERSION}. Update "
            "dimred, or remove the file to have the folder read by file names."
        )
    try:
        layout = WeightLayout.from_json(content.get("layout"))
    except BasisMismatchError as error:
        raise _damaged(path, str(error)) from None
    listed = content.get("entries")
    entries = tuple(_entry(path, item) for item in (listed if isinstance(listed, list) else [None]))
    for before, after in pairwise(entries):
        if after.step <= before.step:
            raise _damaged(path, f"step {after.step} ({after.file}) comes after step {before.step}")
    if len({entry.file for entry in entries}) < len(entries):
        raise _damaged(path, "it lists a file twice")
    return layout, entries


def _entry(path: Path, item: Any) -> SnapshotEntry:
    expected = {field.name: field.type for field in fields(SnapshotEntry)}
    if not isinstance(item, dict) or {key: type(value) for key, value in item.items()} != expected:
        raise _damaged(path, f"an entry is {shown(item)}")
    name = item["file"]
    if name in ("", ".", "..") or any(sign in name for sign in "/\\\0") or Path(name).suffix not in SUFFIXES:
        raise SeriesError(f"{path} lists {shown(name)}, which is not the name of a snapshot in the same folder.")
    return SnapshotEntry(**item)


def _damaged(path: Path, why: str) -> SeriesError:
    return SeriesError(f"{path} can't be used: {why}. Restore it, or remove it to have the folder read by file names.")


def scan_names(directory: Path) -> tuple[SnapshotEntry, ...]:
    """The snapshots of a folder without a manifest, from MindSpore's names ``name-epoch_step.ckpt``.

    They are ordered by epoch and step, never by time. MindSpore counts the step inside the epoch, others
    through all epochs; where the numbers don't grow from file to file they are taken as inside, with the
    largest as epoch length.

    Raises:
        SeriesError: no such file, or files of several runs.
    """
    matches = [match for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    if not matches:
        raise SeriesError(
            f"{directory} has no manifest.json and no file named like 'resnet-70_625.ckpt' (name-epoch_step); give the "
            "folder that stage 1 wrote its snapshots to."
        )
    prefixes = sorted({match["prefix"] for match in matches})
    if len(prefixes) > 1:
        raise SeriesError(
            f"{directory} holds snapshots of several runs: {', '.join(map(repr, prefixes[:4]))}. Move each run to a "
            "folder of its own."
        )
    matches.sort(key=lambda match: (int(match["epoch"]), int(match["step"])))
    steps = [int(match["step"]) for match in matches]
    if any(after <= before for before, after in pairwise(steps)):
        per_epoch = max(steps)
        steps = [max(int(match["epoch"]) - 1, 0) * per_epoch + step for match, step in zip(matches, steps, strict=True)]
    return tuple(
        SnapshotEntry(match.string, step, int(match["epoch"]), (directory / match.string).stat().st_size)
        for match, step in zip(matches, steps, strict=True)
    )
