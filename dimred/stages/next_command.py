"""The commands that come after a stage 1, as lines that a shell takes as they are, in any folder."""

from pathlib import Path

from mindspore import get_context

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig
from dimred.io.run_names import BASIS, SNAPSHOTS
from dimred.runs.task import Task


def commands_after_stage_1(task: Task[StageOneConfig], weights: Path, run_folder: Path) -> list[list[str]]:
    """Return the words of the commands that come next: a PCA, if stage 2 searches, and stage 2; or else the report.

    The report comes next if there are too few snapshots to search in, or the schedule has left no rate to cool down.
    The commands ask for no more directions than the snapshots give, and for batches no larger than the data.
    """
    folder, one = run_folder.absolute(), task.settings
    two = one.following
    snapshots, options = weights.absolute().parent / SNAPSHOTS, list[str]()
    train = ["train", "stage-2", str(task.data.absolute()), str(weights.absolute())]
    commands = []
    if two.method == "search":
        n_snapshots = len(CheckpointSeries.open(snapshots)) if any(snapshots.glob("*")) else 0
        n_components = min(two.search.n_components, n_snapshots - 1)
        if n_components < 1:
            return [["report", str(folder)]]
        if n_components < two.search.n_components:
            options += ["--set", f"search.n_components={n_components}"]
        basis = folder.parent / BASIS
        if basis.exists():  # perhaps of other snapshots, and ``dimred pca`` replaces nothing
            basis = basis.with_stem(f"{basis.stem}_{weights.stem}")
        train.append(str(basis))
        size = ["--n-components", str(n_components)]
        commands.append(["pca", "--ckpt-dir", str(snapshots), *size, "--out", str(basis)])
    elif one.schedule.falls_to_zero and one.epochs >= one.schedule.total_epochs:
        return [["report", str(folder)]]  # nothing is left to cool down
    of_rank = task.training_batches.n_images // task.ranks.group_size
    if two.data.batch_size > of_rank:
        options += ["--set", f"data.batch_size={of_rank}"]
    devices = ["--device-target", get_context("device_target"), "--devices", str(task.ranks.group_size)]
    return [*commands, [*train, *options, "--out", str(folder.parent), *devices]]
