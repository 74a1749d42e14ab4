"""What can be known to be wrong before a job's ranks are started."""

import socket
from pathlib import Path

from dimred.errors import ConfigError
from dimred.launch.job import LAUNCHERS_FILES, Job

__all__ = ["check_launch"]

_ASCEND_DEVICE = Path("/dev/davinci_manager")


def check_launch(job: Job, resume: bool) -> None:
    """Raises ConfigError where the devices are missing, a port is taken, or a folder holds earlier results."""
    if job.device_target == "Ascend" and not _ASCEND_DEVICE.exists():
        raise ConfigError(
            f"--device-target is Ascend, but this host has no Ascend device ({_ASCEND_DEVICE} is missing); use "
            "--device-target CPU, or --dry-run to see what would run"
        )
    if job.uses_msrun and job.node_rank == 0:
        for port in (job.master_port, job.master_port + 1)[: job.nodes]:  # msrun's, and between the launchers
            _check_port(job.master_addr, port)
    for rank in job.local_ranks:
        folder = job.folder(rank)
        held = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        if set(held) - set(LAUNCHERS_FILES) and not resume:
            raise ConfigError(
                f"{str(folder)!r} holds earlier results; --resume goes on with them, --out starts in another folder"
            )


def _check_port(address: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that a job has just left is free
        try:
            probe.bind((address, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of --master-addr {address} can't be used on this host ({error.strerror}); end the "
                "program that has it, name another --master-port, or this host's own address"
            ) from error
