"""The variables that make a process a member of MindSpore's cluster, and the one that says how a shell starts dimred.

A shell inside a cluster's job has the former, and so has every program that is started there. MindSpore obeys them in
every program, so a process that is alone would wait for the others. Only ``Job`` gives them to a process, and ``msrun``
to a program that it starts itself, such as ``msrun ... -m dimred.pipelines.stage_1``.
"""

import logging
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

# Of msrun (mindspore/parallel/cluster/process_entity), of MindSpore's dynamic cluster, of rank tables, and of mpirun.
# MS_TOPO_TIMEOUT, MS_WORKER_IP and the like are left in place: a process that is alone doesn't read them.
_OF_A_CLUSTER = (
    "MS_ROLE",
    "MS_NODE_ID",
    "MS_WORKER_NUM",
    "MS_SERVER_NUM",
    "MS_SCHED_HOST",
    "MS_SCHED_PORT",
    "MS_ENABLE_RECOVERY",
    "MS_HCCL_CM_INIT",
    "RANK_ID",
    "RANK_SIZE",
    "RANK_TABLE_FILE",
    "OMPI_COMMAND",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
)


def without_cluster(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that make a process a member of a cluster."""
    return {name: value for name, value in environment.items() if name not in _OF_A_CLUSTER}


def leave_cluster() -> None:
    """Remove the variables of a cluster from the environment of this process; MindSpore must not be imported yet."""
    for name in _OF_A_CLUSTER:
        os.environ.pop(name, None)


COMMAND = "DIMRED_COMMAND"  # how the user's shell starts dimred; the PATH of a rank is not the user's


def words_of_dimred() -> list[str]:
    """Return the words with which a shell starts this installation's ``dimred``: just its name if PATH finds it."""
    if COMMAND in os.environ:
        return shlex.split(os.environ[COMMAND])
    script = Path(sys.executable).with_name("dimred")
    on_path = shutil.which("dimred")
    if on_path is not None and (not script.exists() or script.samefile(on_path)):
        return ["dimred"]
    return [str(script)] if script.exists() else [sys.executable, "-m", "dimred"]


def log_commands(*commands: Sequence[str]) -> None:
    """Log one or two commands that come next, each given by the words after ``dimred``."""
    for word, command in zip(("next", "then"), commands, strict=False):
        _log.info(f"{word}: {shlex.join([*words_of_dimred(), *command])}")
