"""The variables that put a process into MindSpore's cluster, and the one that says how a shell starts dimred.

A shell inside a cluster job has the cluster variables, and every program started there inherits them. MindSpore obeys
them in every program, so a single process would wait for others. Only ``Job`` gives them to a process, and ``msrun``
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

# From msrun (mindspore/parallel/cluster/process_entity), MindSpore's dynamic cluster, rank tables, and mpirun.
# MS_TOPO_TIMEOUT, MS_WORKER_IP and the like are left in place: a single process doesn't read them.
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
    """Return the variables except the ones that make a process a member of a cluster."""
    return {name: value for name, value in environment.items() if name not in _OF_A_CLUSTER}


def leave_cluster() -> None:
    """Remove cluster variables from this process's environment; MindSpore must not be imported yet."""
    for name in _OF_A_CLUSTER:
        os.environ.pop(name, None)


COMMAND = "DIMRED_COMMAND"  # how the user's shell starts dimred; a rank's PATH is not the user's


def words_of_dimred() -> list[str]:
    """Return the words that start this installation's ``dimred`` in a shell: just its name if PATH finds it."""
    if COMMAND in os.environ:
        return shlex.split(os.environ[COMMAND])
    script = Path(sys.executable).with_name("dimred")
    on_path = shutil.which("dimred")
    if on_path is not None and (not script.exists() or script.samefile(on_path)):
        return ["dimred"]
    return [str(script)] if script.exists() else [sys.executable, "-m", "dimred"]


def log_commands(*commands: Sequence[str]) -> None:
    """Log the next one or two commands, each given as the arguments after ``dimred``."""
    for word, command in zip(("next", "then"), commands, strict=False):
        _log.info(f"{word}: {shlex.join([*words_of_dimred(), *command])}")
