"""``dimred.average``: one network from a window of checkpoints and a profile; and the record beside a result."""

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError
from dimred.files.atomic import atomic_write, remove_leftovers
from dimred.merging.inputs import RECORD, Checkpoint, Sources, open_checkpoints, read_one, record_path, select
from dimred.merging.output import check_target, name_faults, sample_digest, write_network
from dimred.merging.profiles import profile_coefficients

_VERSION = 1
_LIBRARIES = ("dimred", "numpy", "safetensors", "cmaes")
_REMEDY = (
    "re-estimate them on training data, for MindSpore by dimred eval with --save; in a search, by a function "
    "reestimate(candidate) in the metric's file"
)


def average(
    checkpoints: Sources,
    out: str | os.PathLike[str],
    *,
    profile: str = "uniform",
    last: int | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    order: str = "step",
    dtype: str | None = None,
    rest: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Average checkpoints into one network, in their own format; a record goes beside it as ``OUT.json``.

    Args:
        checkpoints: a folder, or files, folders of shards, globs.
        out: the file, or for shards the folder, to write; must not exist.
        profile: how much each counts; see ``profile_coefficients``.
        last: only so many, the newest.
        from_step, to_step: only those from a step to a step, both included.
        order: ``step``, ``name`` or ``mtime``.
        dtype: of the weights written, such as ``float32``; default the checkpoints' own.
        rest: the checkpoint that gives all that isn't averaged; default the last one.

    Returns:
        The record.

    Raises:
        ConfigError: an argument is not allowed.
        CheckpointError: a checkpoint is damaged, or of another network.
        FaultError: ``out`` can't be written.
    """
    target = Path(out)
    check_is_new(target)
    chosen = select(open_checkpoints(checkpoints, order), last, from_step, to_step)
    template = chosen[-1] if rest is None else read_one(Path(rest))
    difference = chosen[-1].layout.misfit({name: place.shape for name, (_, place) in template.tensors.items()})
    if difference:
        raise ConfigError(f"WEIGHTS is {str(rest)!r}, which is not of the snapshots' network: {difference}")
    check_target(target, template, dtype)
    coefficients = profile_coefficients(profile, [checkpoint.step for checkpoint in chosen])
    record = record_of(chosen, coefficients, template, order, dtype) | {"profile": profile}
    with name_faults(target):
        remove_leftovers(target.parent)  # of a call that was killed
        write_network(chosen, coefficients, target, template, dtype)
        write_record(target, record)
    return record


def check_is_new(out: Path) -> None:
    for path in (out, record_path(out)):
        with name_faults(out):
            exists = path.exists()
        if exists:
            raise ConfigError(f"--out is {str(out)!r}, but {str(path)!r} exists already; name another")


def record_of(
    checkpoints: Sequence[Checkpoint], coefficients: np.ndarray, template: Checkpoint, order: str, dtype: str | None
) -> dict[str, Any]:
    """What a result was made from."""
    inputs = [
        {
            "path": str(checkpoint.path),
            "step": checkpoint.step,
            "coefficient": share,
            "sample_sha256": [sample_digest(file) for file in checkpoint.files],
        }
        for checkpoint, share in zip(checkpoints, (coefficients / coefficients.sum()).tolist(), strict=True)
    ]
    origin = "averages" if template in checkpoints else f"those of {template.path}"
    statistics = f"{len(template.statistics)} statistics are {origin}, which do not belong to these weights: {_REMEDY}"
    return {
        "format": RECORD,
        "version": _VERSION,
        "checkpoints": inputs,
        "order": order,
        "all_else_from": str(template.path),
        "dtype": dtype or "as the checkpoints",
        "batch_norm": statistics if template.statistics else "there are no statistics",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES},
    }


def write_record(out: Path, record: dict[str, Any]) -> None:
    """Write the record of a result, whole or not at all."""
    atomic_write(record_path(out), json.dumps(record, indent=1, allow_nan=False) + "\n")
