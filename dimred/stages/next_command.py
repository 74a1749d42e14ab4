"""The commands that come after stage 1, as lines that a shell takes as they are, in any folder."""

from pathlib import Path

from mindspore import get_context

from dimred.config import StageOneConfig
from dimred.runs.task import Task
from dimred.stages.method import plan_of


def commands_after_stage_1(task: Task[StageOneConfig], weights: Path, run_folder: Path) -> list[list[str]]:
    """Return the next commands, as argument lists: the commands for stage 2's method, or else the report.

    The report comes next if stage 1 has left nothing for the method to continue from. The commands ask for batches no
    larger than the data.
    """
    folder = run_folder.absolute()
    config_2 = task.config.following
    following = plan_of(config_2).next_commands(task.config, weights, run_folder)
    if following is None:
        return [["report", str(folder)]]
    train = ["train", "stage-2", str(task.data.absolute()), str(weights.absolute()), *following.arguments]
    of_rank = task.training_batches.n_images // task.ranks.group_size
    if config_2.data.batch_size > of_rank:
        train += ["--set", f"data.batch_size={of_rank}"]
    train += ["--out", str(folder.parent)]
    train += ["--device-target", get_context("device_target"), "--devices", str(task.ranks.group_size)]
    return [*following.before, train]
