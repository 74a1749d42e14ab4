"""What a job is: which ranks run where, in which folders, with which environment and command."""

import os
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from dimred.errors import ConfigError
from dimred.files.run_names import MSRUN_LOGS, RANK_LOG, results_in
from dimred.launch.rank_table import Device, read_rank_table

NODE_RANK = "DIMRED_NODE_RANK"
_LOOPBACK = "127.0.0.1"
_USUAL_PORT = 8118  # msrun's own default
_ASCEND_DEVICE = Path("/dev/davinci_manager")


@dataclass(frozen=True)
class Job:
    """One program on several ranks."""

    program: str  # its module, such as dimred.pipelines.stage_1; run with the arguments and --out FOLDER
    stage: str  # ends the names of the ranks' folders, out/device{rank}_{stage}
    arguments: tuple[str, ...]
    out: Path
    devices: int  # R, ranks on all nodes together
    nodes: int  # hosts; each has R / nodes ranks
    node_rank: int  # number of this host
    master_addr: str  # where the ranks find each other, on node 0
    master_port: int
    device_target: Literal["CPU", "Ascend"]
    rank_table: Path | None = None  # None lets msrun number the ranks
    table: tuple[Device, ...] = ()  # its rows, by rank; empty without one

    @property
    def local_ranks(self) -> range:
        """The ranks of this node."""
        per_node = self.devices // self.nodes
        return range(self.node_rank * per_node, (self.node_rank + 1) * per_node)

    @property
    def uses_msrun(self) -> bool:
        """One rank alone is started without msrun."""
        return self.devices > 1

    def folder(self, rank: int) -> Path:
        """Where a rank writes."""
        return rank_folder(self.out, rank, self.stage)

    def command(self, rank: int) -> list[str]:
        """What a rank runs."""
        return rank_command(self.program, self.arguments, self.folder(rank))

    def msrun(self) -> list[str]:
        """The msrun call of this node; each of the processes it starts is a ``rank_process``."""
        command = [
            str(Path(sys.executable).with_name("msrun")),
            f"--worker_num={self.devices}",
            f"--local_worker_num={len(self.local_ranks)}",
            f"--master_addr={self.master_addr}",
            f"--master_port={self.master_port}",
            f"--node_rank={self.node_rank}",
            f"--log_dir={self.folder(self.local_ranks[0]) / MSRUN_LOGS}",
            "--join=True",
            f"--tail_worker_log={self.devices}",  # no rank has this number: the launcher itself shows the log
        ]
        if self.rank_table is not None:
            command.append(f"--rank_table_file={self.rank_table}")
        return [*command, "python", *self.rank_process()]

    def rank_process(self) -> list[str]:
        """Arguments of the Python that wraps a rank's program."""
        return ["-m", "dimred.launch.rank", str(self.out), self.stage, self.program, *self.arguments]

    def environment(self) -> dict[str, str]:
        """What every process of the job gets, over the environment of the launcher."""
        given = os.environ
        path = f"{Path(sys.executable).parent}{os.pathsep}{given.get('PATH', '')}"
        mine = {"PATH": path, NODE_RANK: str(self.node_rank), "GLOG_v": given.get("GLOG_v", "3")}
        if self.device_target == "CPU" and len(self.local_ranks) > 1:
            threads = max(1, (os.cpu_count() or 1) // len(self.local_ranks))
            mine["OMP_NUM_THREADS"] = given.get("OMP_NUM_THREADS", str(threads))
            # MindSpore's ranks look for each other every 3 to 5 seconds; every second, two of them begin 5 s earlier.
            for bound in ("MS_RETRY_INTERVAL_LOWER", "MS_RETRY_INTERVAL_UPPER"):
                mine[bound] = given.get(bound, "1")
        if self.device_target == "Ascend" and self.uses_msrun:
            # Ranks that read the tree of the images come to their first collective minutes apart; HCCL waits for 120 s.
            mine["HCCL_CONNECT_TIMEOUT"] = given.get("HCCL_CONNECT_TIMEOUT", "600")
        return mine

    def rank_environment(self, rank: int) -> dict[str, str]:
        """What one rank gets besides; where msrun starts it, msrun sets all of it but ``DEVICE_ID`` of a rank table."""
        device = self.table[rank].device_id if self.table else rank - self.local_ranks[0]
        mine = {"RANK_ID": str(rank), "RANK_SIZE": str(self.devices), "DEVICE_ID": str(device)}
        if self.uses_msrun:
            mine |= {
                "MS_ROLE": "MS_WORKER",
                "MS_NODE_ID": str(rank),
                "MS_WORKER_NUM": str(self.devices),
                "MS_SCHED_HOST": self.master_addr,
                "MS_SCHED_PORT": str(self.master_port),
            }
        if self.rank_table is not None:
            mine["RANK_TABLE_FILE"] = str(self.rank_table)
        return mine

    def describe(self) -> Iterator[str]:
        """Lines for people: what each rank of this node would run, with its environment."""
        ranks = self.local_ranks
        yield f"node {self.node_rank} of {self.nodes}: ranks {ranks[0]} to {ranks[-1]} of {self.devices}"
        yield "every process: " + " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment().items())
        if self.uses_msrun:
            yield "msrun: " + shlex.join(self.msrun())
        for rank in ranks:
            yield f"rank {rank}: log {self.folder(rank) / RANK_LOG}"
            if self.table:
                yield f"  device {self.table[rank].device_ip} of server {self.table[rank].server_id}"
            yield "  " + " ".join(f"{name}={value}" for name, value in self.rank_environment(rank).items())
            yield "  " + shlex.join(self.command(rank))

    def check(self, resume: bool) -> None:
        """Find what can be known to be wrong before any rank is started.

        Raises:
            ConfigError: the devices or CANN's module are missing, a port is taken, or a folder holds earlier results
                without ``resume``.
        """
        if self.device_target == "Ascend" and not _ASCEND_DEVICE.exists():
            raise ConfigError(
                f"--device-target is Ascend, but this host has no Ascend device ({_ASCEND_DEVICE} is missing); use "
                "--device-target CPU, or --dry-run to see what would run"
            )
        if self.device_target == "Ascend" and self.uses_msrun and find_spec("hccl") is None:
            raise ConfigError(
                f"--devices is {self.devices}, but {sys.executable} has no module 'hccl', with which MindSpore joins "
                "Ascend devices; source CANN's set_env.sh, or install CANN's hccl-*.whl for this Python"
            )
        if self.uses_msrun and self.node_rank == 0:
            for port in (self.master_port, self.master_port + 1)[: self.nodes]:  # msrun's, and between the launchers
                _check_port(self.master_addr, port)
        for folder in map(self.folder, self.local_ranks):
            if folder.is_dir() and results_in(folder) and not resume:
                raise ConfigError(
                    f"{str(folder)!r} holds earlier results; --resume goes on with them, --out starts in another folder"
                )


def rank_folder(out: Path, rank: int, stage: str) -> Path:
    """Where a rank writes."""
    return out / f"device{rank}_{stage}"


def rank_command(program: str, arguments: Sequence[str], folder: Path) -> list[str]:
    """What a rank runs."""
    return [sys.executable, "-m", program, *arguments, "--out", str(folder)]


def make_job(
    program: str,
    stage: str,
    arguments: list[str],
    *,
    out: Path,
    devices: int | None,
    device_target: Literal["CPU", "Ascend"],
    rank_table: Path | None = None,
    nodes: int | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> Job:
    """A job from what a person typed; None stands for what was not typed.

    Devices, nodes and node 0's address come from the rank table, where there is one; without it there are 8 devices on
    1 node. On one node a free port is looked up; several nodes have to agree on one, 8118 by default.

    Raises:
        ConfigError: a number is out of range, the rank table is wrong or says something else, or several nodes miss
            an address or a number.
    """
    table: list[Device] = []
    if rank_table is not None:
        table = read_rank_table(rank_table, devices)
        servers = list(dict.fromkeys(device.server_id for device in table))  # in the order of their ranks
        if nodes not in (None, len(servers)):
            raise ConfigError(f"--nodes is {nodes}, but --rank-table has {len(servers)} servers")
        devices, nodes, master_addr = len(table), len(servers), master_addr or servers[0]
    devices, nodes = 8 if devices is None else devices, nodes or 1
    if devices % nodes:
        raise ConfigError(f"--devices is {devices}, all nodes together; it must be a multiple of --nodes {nodes}")
    if nodes > 1 and (node_rank is None or master_addr is None):
        missing = "--node-rank" if node_rank is None else "--master-addr"
        raise ConfigError(
            f"{missing} is missing: with {nodes} nodes, start the same command on each, with --node-rank 0 to "
            f"{nodes - 1} and node 0's address as --master-addr"
        )
    if not 0 <= (node_rank or 0) < nodes:
        raise ConfigError(f"--node-rank is {node_rank}; with {nodes} nodes it must be 0 to {nodes - 1}")
    return Job(
        program=program,
        stage=stage,
        arguments=tuple(arguments),
        out=out.absolute(),
        devices=devices,
        nodes=nodes,
        node_rank=node_rank or 0,
        master_addr=master_addr if nodes > 1 and master_addr else _LOOPBACK,
        master_port=master_port or (_USUAL_PORT if nodes > 1 else _free_port()),
        device_target=device_target,
        rank_table=None if rank_table is None else rank_table.absolute(),
        table=tuple(table),
    )


def _free_port() -> int:
    """A port that is free, as is the next one, which the launchers of several hosts use."""
    while True:
        with socket.create_server((_LOOPBACK, 0)) as probe, suppress(OSError, OverflowError):
            port = int(probe.getsockname()[1])
            with socket.create_server((_LOOPBACK, port + 1)):
                return port


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
