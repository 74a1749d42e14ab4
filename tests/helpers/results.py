"""Compare the files of two runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dimred.checkpoints.states import RunStates
from dimred.io.checksums import read_checksummed
from dimred.io.file_format import RESULT_OF_STAGE_2
from dimred.run_files.metrics_file import read_metrics

TIMES = ("seconds", "evaluation_seconds", "averaged_seconds", "training_seconds", "sources")

# These come from differences of losses, of which a millionth of a loss may be a large part.
DIFFERENCES = ("behind", "standard_error", "averaged_gain", "averaged_gain_standard_error", "averaged_standard_error")
STATE_LOSSES = "losses in the newest state"  # one for each sample of val
MEASURED = "val_loss:"


def results(folder: Path) -> dict[str, Any]:
    """Read every file below a run's folder by name, without times, locks and MindSpore's log.

    Of the states only the newest is read, as its arrays; its losses of single samples stand under ``STATE_LOSSES``.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name in (".lock", "mindspore.log"):
            continue
        if path.name == "metrics.jsonl":
            found[name] = [without_times(record) for record in read_metrics(path)]
        elif path.name == "result.json":
            found[name] = without_times(read_checksummed(path, RESULT_OF_STAGE_2))
        elif path.parent.name == "resume":
            state = RunStates(path.parent.parent).newest(pytest.fail)
            found[name] = "a state"
            losses = {key: value for key, value in state.arrays.items() if key.startswith(MEASURED)}
            found["newest state"] = {key: value.tobytes() for key, value in state.arrays.items() if key not in losses}
            found[STATE_LOSSES] = losses
        else:
            found[name] = path.read_bytes()
    return found


def without_times(value: Any) -> Any:
    """Leave out the keys in ``TIMES``, at any depth."""
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    names = differing(found, expected)
    return [f"{name}: {str(found.get(name))[:300]} != {str(expected.get(name))[:300]}" for name in names]


def differing(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [name for name in sorted(found.keys() | expected.keys()) if not same(name, found, expected)]


def same(name: str, found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Return whether two runs have the same content under a name, to the last byte, but for the last bits of losses.

    MindSpore's CPU kernels time several ways to share out their work (``ParallelLaunchAutoSearch``), so that another
    process may sum the loss of the same batch in another order. The gradient is not made from this sum.
    """
    if name == STATE_LOSSES and name in found.keys() & expected.keys():
        one, other = found[name], expected[name]
        return one.keys() == other.keys() and all(np.allclose(one[key], other[key], atol=1e-5) for key in one)
    if name.endswith(("metrics.jsonl", "result.json")):
        return near(found.get(name), expected.get(name))
    return bool(found.get(name) == expected.get(name))


def near(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, but for a millionth of each floating-point number inside."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            one[key] == pytest.approx(other[key], abs=1e-6) if key in DIFFERENCES else near(one[key], other[key])
            for key in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    return bool(one == pytest.approx(other, rel=1e-6) if isinstance(other, float) else one == other)
