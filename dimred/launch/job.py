"""A job: its ranks with their folders, environment and commands, and the checks before they start."""

import os
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dimred.errors import ConfigError, MissingPackageError, number_of
from dimred.launch.device import Target
from dimred.launch.devices import DEVICES
from dimred.launch.environment import COMMAND, words_of_dimred
from dimred.launch.rank_table import Device, read_rank_table
from dimred.run_files.run_names import RANK_LOG, results_in

_LOOPBACK = "127.0.0.1"
_USUAL_PORT = 8118  # MindSpore's own launcher uses it too
_SECONDS_TO_JOIN = 600  # people start hosts by hand, one after the other
_WITHOUT_DEVICE = "use --device-target CPU, or --dry-run to see what would run"
_SCHEDULER = "from mindspore import communication; communication.init()"  # returns when all ranks have ended
OF_SCHEDULER = {"MS_ROLE": "MS_SCHED"}  # the scheduler's variables in addition to Job.environment


def can_join_ranks() -> bool:
    """Return whether MindSpore can join ranks on this system: its build for macOS lacks its cluster's network."""
    return sys.platform != "darwin"


@dataclass(frozen=True)
class Job:
    """One program on one or more ranks; see ``make_job``."""

    program: str  # module that each rank runs with ``arguments`` and ``--out FOLDER``
    stage: str  # suffix of the ranks' folders, out/device{rank}_{stage}
    arguments: tuple[str, ...]
    out: Path  # folder of the ranks' folders
    devices: int  # number of ranks on all hosts together, R
    nodes: int  # number of hosts; each has R / nodes ranks
    node_rank: int  # number of this host
    master_addr: str  # address of host 0, where the ranks find each other
    master_port: int  # the port there
    device_target: Target
    rank_table: Path | None = None
    table: "tuple[Device, ...]" = ()  # the rank table's rows by rank; empty without one

    @property
    def local_ranks(self) -> range:
        """Return the ranks of this host."""
        per_node = self.devices // self.nodes
        return range(self.node_rank * per_node, (self.node_rank + 1) * per_node)

    @property
    def joins_ranks(self) -> bool:
        """Return whether the ranks form a cluster; a single rank does not."""
        return self.devices > 1

    @property
    def has_scheduler(self) -> bool:
        """Return whether this host runs MindSpore's scheduler, through which the ranks find each other."""
        return self.joins_ranks and self.node_rank == 0

    def folder(self, rank: int) -> Path:
        """Return the folder that a rank writes to."""
        return self.out / f"device{rank}_{self.stage}"

    def command(self, rank: int) -> list[str]:
        """Return a rank's command line; with -P, no file in the user's folder hides a Python module."""
        return [sys.executable, "-P", "-m", self.program, *self.arguments, "--out", str(self.folder(rank))]

    def scheduler_command(self) -> list[str]:
        """Return the scheduler's command line; the job's folder at its end identifies it in ``ps``."""
        return [sys.executable, "-P", "-c", _SCHEDULER, str(self.out)]

    def environment(self) -> dict[str, str]:
        """Return the variables that every process of the job gets in addition to the launcher's environment."""
        outer = os.environ
        mine = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{outer.get('PATH', '')}",
            COMMAND: shlex.join(words_of_dimred()),
            "PYTHONUNBUFFERED": "1",
            "GLOG_v": outer.get("GLOG_v", "3"),
        }
        if self.joins_ranks:
            mine |= self._environment_of_cluster()
        if self.rank_table is not None:
            mine["RANK_TABLE_FILE"] = str(self.rank_table)
        return mine

    def _environment_of_cluster(self) -> dict[str, str]:
        """Return the variables by which the ranks find each other and share a host's cores."""
        usual = {"MS_TOPO_TIMEOUT": str(_SECONDS_TO_JOIN)}
        usual |= DEVICES[self.device_target].cluster_environment(len(self.local_ranks))
        return {
            "MS_WORKER_NUM": str(self.devices),
            "MS_SCHED_HOST": self.master_addr,
            "MS_SCHED_PORT": str(self.master_port),
            **{name: os.environ.get(name, value) for name, value in usual.items()},
        }

    def rank_environment(self, rank: int) -> dict[str, str]:
        """Return the variables that one rank gets in addition to ``environment``."""
        number = self.table[rank].device_id if self.table else rank - self.local_ranks[0]
        is_alone = self.devices == 1 and self.rank_table is None
        mine = {"RANK_ID": str(rank), "RANK_SIZE": str(self.devices)}
        mine |= DEVICES[self.device_target].rank_environment(number, is_alone=is_alone)
        return mine | ({"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)} if self.joins_ranks else {})

    def describe(self) -> Iterator[str]:
        """Yield lines with the command and environment of each process on this host."""
        ranks = self.local_ranks
        yield f"node {self.node_rank} of {self.nodes}: ranks {ranks[0]} to {ranks[-1]} of {self.devices}"
        yield f"every process: {_assignments(self.environment())}"
        if self.has_scheduler:
            yield f"scheduler: {_assignments(OF_SCHEDULER)} {shlex.join(self.scheduler_command())}"
        for rank in ranks:
            yield f"rank {rank}: log {self.folder(rank) / RANK_LOG}"
            if self.table:
                yield f"  device {self.table[rank].device_ip} on server {self.table[rank].server_id}"
            yield f"  {_assignments(self.rank_environment(rank))} {shlex.join(self.command(rank))}"

    def check(self, resume: bool) -> None:
        """Check what can be checked before any rank is started.

        Raises:
            MissingPackageError: MindSpore is not installed.
            ConfigError: ranks can't be joined on this system, devices or their prerequisites are missing, the port
                can't be used, or a folder holds earlier results and ``resume`` is not set.
        """
        if find_spec("mindspore") is None:
            raise MissingPackageError("mindspore")
        if self.joins_ranks and not can_join_ranks():
            raise ConfigError(
                f"--devices is {self.devices}, but MindSpore for macOS can't join ranks; give --devices 1, or train on "
                "Linux"
            )
        asked = f"--device-target is {self.device_target}"
        DEVICES[self.device_target].check(asked, _WITHOUT_DEVICE, len(self.local_ranks), joins=self.joins_ranks)
        if self.has_scheduler:
            _check_port(self.master_addr, self.master_port)
        for folder in map(self.folder, self.local_ranks):
            if folder.is_dir() and results_in(folder) and not resume:
                raise ConfigError(
                    f"{str(folder)!r} holds earlier results; continue them with --resume, or name another --out"
                )


def make_job(
    program: str,
    stage: str,
    arguments: list[str],
    *,
    out: Path,
    devices: int | None,
    device_target: Target,
    rank_table: Path | None = None,
    nodes: int | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> Job:
    """Make a job from the fields of ``Job``; None stands for an option that was not given.

    A rank table gives the devices and the hosts, and also host 0's address, if it has that and ``master_addr`` is None.
    The default port is a free one for one host, and 8118 for several, because they have to agree on it.

    Raises:
        ConfigError: a number is out of range or missing, the rank table is wrong or contradicts an option, or there are
            several hosts and the address of host 0 or the number of this host is missing.
    """
    table: list[Device] = []
    if rank_table is not None:
        table = read_rank_table(rank_table, devices)
        n_servers = len({device.server_id for device in table})
        if nodes not in (None, n_servers):
            raise ConfigError(
                f"--nodes is {nodes}, but --rank-table has {number_of(n_servers, 'server')}; leave --nodes out"
            )
        devices = len(table)
        nodes = n_servers
        master_addr = master_addr or table[0].host
    if devices is None:
        raise ConfigError("--devices is missing, and no --rank-table lists the devices; give one of them")
    nodes = nodes or 1
    if nodes > 1 or node_rank is not None:
        _check_hosts(devices, nodes, node_rank, master_addr)
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


def _check_hosts(devices: int, nodes: int, node_rank: int | None, master_addr: str | None) -> None:
    """Check the options of several hosts against each other."""
    if devices % nodes:
        raise ConfigError(f"--devices is {devices}, for all nodes together; it must be a multiple of --nodes {nodes}")
    if nodes > 1 and (node_rank is None or master_addr is None):
        option = "--node-rank" if node_rank is None else "--master-addr"
        raise ConfigError(
            f"{option} is missing: with {nodes} nodes, start the same command on each, with --node-rank 0 to "
            f"{nodes - 1} and node 0's address as --master-addr"
        )
    if not 0 <= (node_rank or 0) < nodes:
        raise ConfigError(f"--node-rank is {node_rank}; with {nodes} nodes it must be 0 to {nodes - 1}")


def _assignments(environment: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def _check_port(address: str, port: int) -> None:
    try:
        family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just left is free
            probe.bind(place)
    except OSError as error:
        raise ConfigError(
            f"port {port} of --master-addr {address} can't be used on this host ({error.strerror}); end the "
            "program that uses it, name another --master-port, or name this host's own address"
        ) from error
