"""The commands whose disk loses power or fails: each runs in this process, on real files."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import DimredError
from dimred.subspace.fit import fit_basis
from tests.helpers.commands import dimred_here
from tests.helpers.results import results
from tests.helpers.run_files import write_run

# Two steps an epoch, with a state after each.
SHORT: dict[str, Any] = {
    "epochs": 2,
    "data": {"dataset": "tests.helpers.tiny_task:Points", "batch_size": 12, "workers": 1},
    "reestimate_batches": 1,
    "save_every_steps": 1,
}
STAGE_1: dict[str, Any] = {
    "evaluate_every_epochs": 2,
    "schedule": {"peak": 0.1, "warmup_epochs": 0, "total_epochs": 3},
    "checkpoints": {"every_epochs": 1, "keep": 1},
    "snapshots": {"per_epoch": 2, "keep": 3},
}
METRIC = """
def score(tensors, split):
    return [float(one) for one in tensors["weight"].reshape(-1) ** 2]
"""


class Outcome(NamedTuple):
    """How a command has ended: its exit status, and what it wrote to standard error."""

    status: int
    error: str


class Case(NamedTuple):
    """A command that writes below a folder.

    Attributes:
        run: runs it; takes the folder, and whether an earlier run in it is continued.
        results: reads all that it writes, but for times.
    """

    run: Callable[[Path, bool], Outcome]
    results: Callable[[Path], dict[str, Any]] = results


def write_series(folder: Path) -> Path:
    """Write six snapshots of a small network."""
    rng, series = np.random.default_rng(0), CheckpointSeries.create(folder, keep=None)
    for number in range(1, 7):
        arrays = {"weight": rng.normal(size=(40, 5)), "bias": rng.normal(size=7)}
        series.append({name: value.astype(np.float32) for name, value in arrays.items()}, number, number)
    return folder


def command(*words: object, out: str, to_go_on: Sequence[str] = ()) -> Case:
    """Make the case of a ``dimred`` command with ``--out``, and the options to go on after it was stopped."""

    def run(folder: Path, resume: bool) -> Outcome:
        done = dimred_here(*words, *(to_go_on if resume else ()), "--out", folder / out)
        return Outcome(done.returncode, done.stderr)

    return Case(run)


def pca(inputs: Path) -> Case:
    return command("pca", "--ckpt-dir", write_series(inputs / "series"), "--n-components", 3, out="pca_mat.npy")


def merge(inputs: Path) -> Case:
    return command("merge", write_series(inputs / "series"), out="average.safetensors")


def merge_by_metric(inputs: Path) -> Case:
    (inputs / "metric.py").write_text(METRIC)
    options = ("--budget", 3, "--metric", f"{inputs / 'metric.py'}:score", "--minimize")
    case = command("merge", write_series(inputs / "series"), *options, out="best.safetensors", to_go_on=["--resume"])

    def without_resume(folder: Path) -> dict[str, Any]:
        """Read the results; the record of a merge has its command, too."""
        return {
            name: content.replace(b" --resume", b"") if name.endswith(".json") else content
            for name, content in results(folder).items()
        }

    return Case(case.run, without_resume)


def report(inputs: Path) -> Case:
    return command("report", write_run(inputs, 3, 2, 2).stage_1, out="report")


def convert(inputs: Path) -> Case:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3)}, inputs / "network.pt")
    return command("convert", inputs / "network.pt", out="network.safetensors")


def stage_1(inputs: Path) -> Case:
    from dimred.config import StageOneConfig
    from dimred.runs.device import set_up
    from tests.helpers.tiny_run import stage_1_run
    from tests.helpers.tiny_task import TASK

    config = StageOneConfig.model_validate(TASK | SHORT | STAGE_1)
    set_up(config.seed)
    return _stage(stage_1_run(config))


def search(inputs: Path) -> Case:
    return _stage_2(inputs, {"search": {"n_components": 2, "alpha": 0}})


def cooldown(inputs: Path) -> Case:
    return _stage_2(inputs, {"method": "cooldown"})


def _stage_2(inputs: Path, options: dict[str, Any]) -> Case:
    from dimred.config import StageTwoConfig
    from tests.helpers.tiny_run import stage_2_run
    from tests.helpers.tiny_task import TASK

    assert stage_1(inputs).run(inputs, False).status == 0
    checkpoints = inputs / "run" / "checkpoint_stage_1"
    basis = fit_basis(checkpoints / "checkpoint_pca", 2, out=inputs / "pca_mat.npy")
    config = StageTwoConfig.model_validate(TASK | SHORT | options)
    weights = next(checkpoints.glob("*.ckpt"))
    return _stage(stage_2_run(config, weights, basis.path if config.method == "search" else None))


def _stage(run_stage: Callable[[Path, bool], object]) -> Case:
    """Make the case of a stage; its cells are compiled once for all its runs."""
    from dimred.runs.run_folder import check_run_folder

    def run(folder: Path, resume: bool) -> Outcome:
        try:
            check_run_folder(folder / "run", resume=resume)
            run_stage(folder / "run", resume)
        except DimredError as error:
            return Outcome(error.exit_status, f"error: {error}")
        except Exception:
            return Outcome(1, traceback.format_exc())
        return Outcome(0, "")

    return Case(run)
