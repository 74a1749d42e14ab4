"""Describe how a result was made: in its record, ``OUT.json``, and for people in tables, sentences and a model card."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dimred import __version__
from dimred.checkpoints.stored_tensor import reading
from dimred.errors import ConfigError, FaultError
from dimred.io.atomic import atomic_write, describe_os_error
from dimred.io.checksums import sample_digest
from dimred.io.file_format import MERGE
from dimred.io.regular_file import read_regular
from dimred.merging.saved_network import SavedNetwork

MERGE_FOLDER = ".merge"  # suffix of the folder that a merge works in
CARD = "README.md"  # a model's card, named as hubs expect
INPUT_CARD = "README.input.md"  # a copy of the last input's card
_LIBRARIES = ("numpy", "safetensors")
_REMEDY = (
    "re-estimate them on training data, for MindSpore by dimred eval with --save; with a metric, by a function "
    "reestimate(candidate) in its file"
)
SPLITS = ("search", "select", "test")  # of the metric's samples


def record_path(out: Path) -> Path:
    """Return the path of the record beside the result of a merge."""
    return out.parent / f"{out.name}.json"  # also for "." and "/", which have no name


def has_record(out: Path) -> bool:
    """Return whether a file or folder has the record of a merge beside it.

    Raises:
        ConfigError: it has one, of a version that this dimred does not read.
    """
    path = record_path(out)
    try:
        record = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or record.get("format") != MERGE.name:
        return False
    try:
        MERGE.content_of(record)
    except ValueError as error:
        raise ConfigError(f"{path} should be a merge's record, but can't be used: {error}") from None
    return True


def work_folder(out: Path) -> Path:
    """Return the folder beside a result that its merge works in: with the lock, the candidate and the scores."""
    return out.with_name(out.name + MERGE_FOLDER)


@contextmanager
def name_faults(out: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a FaultError that names ``out``, as the user typed it."""
    try:
        yield
    except OSError as error:
        raise FaultError(
            f"out is {str(out)!r}, which can't be written ({describe_os_error(error)})", argument="out"
        ) from error


def check_is_new(out: Path) -> None:
    """Raise ConfigError if there is a result already, or another file in the place of its record.

    A record without its result is allowed, because a call that was killed leaves one.
    """
    for path in (out, record_path(out)):
        with name_faults(out):
            exists = path.exists()
        if exists and (path == out or not has_record(out)):
            raise ConfigError(f"out is {str(out)!r}, but {str(path)!r} exists already; name another", argument="out")


def record_of(
    checkpoints: Sequence[SavedNetwork],
    coefficients: np.ndarray,
    template: SavedNetwork,
    order: str,
    dtype: str | None,
    command: str,
) -> dict[str, Any]:
    """Describe what a result was made from, as a dictionary for ``json.dumps``.

    Args:
        checkpoints: the checkpoints, oldest first.
        coefficients: float64 (N,), at least 0, with any sum.
        template: the checkpoint that everything but the weights was copied from.
        order: what the checkpoints were sorted by.
        dtype: type of the weights, as the user gave it; None if they kept theirs.
        command: the command that makes the result again.

    Raises:
        CheckpointError: a checkpoint can't be read.
    """
    inputs = [
        {
            "path": str(checkpoint.path),
            "step": checkpoint.step,
            "coefficient": coefficient,
            "sample_sha256": sample_digests(checkpoint),
        }
        for checkpoint, coefficient in zip(checkpoints, (coefficients / coefficients.sum()).tolist(), strict=True)
    ]
    origin = "averages" if template in checkpoints else f"copies from {template.path}"
    statistics = f"{len(template.statistics)} statistics are {origin}, which do not belong to these weights: {_REMEDY}"
    content = {
        "checkpoints": inputs,
        "command": command,
        "order": order,
        "all_else_from": str(template.path),
        "dtype": dtype or "as the checkpoints",
        "batch_norm": statistics if template.statistics else "there are no statistics",
        "versions": {"python": platform.python_version(), "dimred": __version__}
        | {name: version(name) for name in _LIBRARIES},
    }
    return MERGE.marked(content)


def describe(result: Path, out: Path, record: dict[str, Any]) -> None:
    """Write the record of a result and, for a folder, its model card.

    Args:
        result: the file or folder, under its temporary name.
        out: the name that it will get; the record goes beside it.
        record: see ``record_of``.

    Raises:
        OSError: a file can't be written.
    """
    if result.is_dir():
        _write_card(result, out.name, record)
    atomic_write(record_path(out), json.dumps(record, indent=1, allow_nan=False) + "\n")


def sample_digests(checkpoint: SavedNetwork) -> list[str]:
    """Compute the ``sample_digest`` of each file of a checkpoint; CheckpointError if one can't be read."""
    digests = []
    for file in checkpoint.files:
        with reading(file):
            digests.append(sample_digest(file))
    return digests


def tables_of(record: Mapping[str, Any]) -> list[tuple[Sequence[str], list[list[str]]]]:
    """List the tables of a merge, (headings, rows) each: the inputs and, with a metric, the best candidates."""
    inputs = [
        [checkpoint["path"], str(checkpoint["step"]), f"{checkpoint['coefficient']:.4g}"]
        for checkpoint in record["checkpoints"]
    ]
    tables: list[tuple[Sequence[str], list[list[str]]]] = [(("checkpoint", "step", "coefficient"), inputs)]
    if "table" in record:
        rows = [
            ["*" if row["kept"] else "", row["kind"], row["name"], *map(score_text, map(row.get, SPLITS))]
            for row in record["table"]
        ]
        tables.append((("kept", "kind", "candidate", *SPLITS), rows))
    return tables


def score_text(score: Sequence[float | None] | None) -> str:
    """Format a score and its standard error, if there is one; empty without a score."""
    return " ± ".join(f"{number:.4f}" for number in score or () if number is not None)


def sentences_of(record: Mapping[str, Any]) -> list[str]:
    """Describe a merge in sentences: how the coefficients were found, LoRA, and BatchNorm."""
    how = f"Profile: {record.get('profile')}."
    if "table" in record:
        how = f"Kept {record['kept']['name']}: {record['why']}. {record['evaluations']} evaluations; {record['ended']}."
    titles = {"lora": "LoRA", "spectral_norm": "Spectral norm", "batch_norm": "BatchNorm"}
    return [how, *(f"{title}: {record[key]}." for key, title in titles.items() if key in record)]


def _write_card(folder: Path, title: str, record: Mapping[str, Any]) -> None:
    """Write the model card of an output folder; the last input's card is ``README.input.md`` beside it."""
    parts = [
        "---\ntags: [merge, dimred]\n---",
        f"# {title}",
        f"An average of {len(record['checkpoints'])} checkpoints of one training run, made by dimred "
        f"{record['versions']['dimred']} from their files alone.",
        *sentences_of(record),
        *(_markdown(headings, rows) for headings, rows in tables_of(record)),
    ]
    if "table" in record:
        error = "Scores are means ± their standard errors, where the metric gives them"
        parts.append(f"{error}; {record['better']} is better. The metric: `{record['metric']}`.")
    parts.append(f"The call, as a command:\n\n```sh\n{record['command']}\n```")
    if (folder / INPUT_CARD).exists():
        parts.append(f"[{INPUT_CARD}]({INPUT_CARD}) is the last input's card; its figures are not of this network.")
    (folder / CARD).write_text("\n\n".join(parts) + "\n", encoding="utf-8", errors="backslashreplace")


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
