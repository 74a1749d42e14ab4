"""The command that comes after a stage 1."""

from pathlib import Path

from mindspore import get_context

from dimred.config import StageOneConfig, StageTwoConfig, following_stage_2, load_config
from dimred.errors import DimredError
from dimred.io.run_names import BASIS, CONFIG, SNAPSHOTS
from dimred.stages.task import Task, build_data


def commands_after_stage_1(task: Task[StageOneConfig], weights: Path, run_folder: Path) -> list[list[str]]:
    """Return the words of the commands that come next: a PCA, if stage 2 searches, and stage 2.

    They work as they are from any folder. Stage 2 takes over the rest from the run of stage 1.

    Args:
        task: the task of stage 1.
        weights: its last full checkpoint.
        run_folder: folder of the run.
    """
    folder, one = run_folder.absolute(), task.settings
    two = load_config(StageTwoConfig, following_stage_2(folder / CONFIG), over=one)
    if two.search is None and one.schedule.last_epoch is not None and one.epochs >= one.schedule.last_epoch:
        return [["dimred", "report", str(folder)]]  # nothing is left to cool down
    train = ["dimred", "train", "stage-2", str(task.data.absolute()), str(weights.absolute())]
    commands = []
    if two.search is not None:
        basis = str(folder.parent / BASIS)
        n_components = ["--n-components", str(two.search.n_components)]
        snapshots = str(weights.absolute().parent / SNAPSHOTS)
        commands.append(["dimred", "pca", "--ckpt-dir", snapshots, *n_components, "--out", basis])
        train.append(basis)
    if two.uses_val and not _has_val(task):
        train += ["--set", "keep_best=false"]
    if folder.parent != Path.cwd():
        train += ["--out", str(folder.parent)]
    train += ["--device-target", get_context("device_target"), "--devices", str(task.ranks.group_size)]
    return [*commands, train]


def _has_val(task: Task[StageOneConfig]) -> bool:
    try:
        build_data(task.settings.data, task.data, "val")
    except DimredError:
        return False
    return True
