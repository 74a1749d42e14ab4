"""Rank tables, which say which device of which server is which rank, as Ascend's collective library reads them."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, IPvAnyAddress, ValidationError

from dimred.errors import ConfigError, shown

_LARGEST_FILE = 16 * 2**20  # bytes; a table has about 100 for each device
_Number = Annotated[str, Field(pattern="^[0-9]{1,8}$")]


class _Row(BaseModel, coerce_numbers_to_str=True):
    """Part of a table, in which numbers may stand for texts."""


class _DeviceRow(_Row):
    device_id: _Number
    device_ip: IPvAnyAddress
    rank_id: _Number


class _ServerRow(_Row):
    server_id: IPvAnyAddress
    device: Annotated[list[_DeviceRow], Field(min_length=1)]


class _Table(_Row):
    version: str
    server_count: str
    server_list: Annotated[list[_ServerRow], Field(min_length=1)]
    status: str


class Device(NamedTuple):
    """A device of a table."""

    rank: int  # over all servers, from 0
    server_id: str  # its server's address
    device_id: int  # number of the device on its server
    device_ip: str  # the address of the device's own network card


def make_rank_table(servers: Sequence[str], device_ips: Sequence[str]) -> dict[str, Any]:
    """Make a table in which ranks follow the servers, and on each server its devices 0, 1, ...; the first is node 0.

    Raises:
        ConfigError: the devices can't be divided equally, or an address is not one or is given twice.
    """
    if not servers or not device_ips or len(device_ips) % len(servers):
        raise ConfigError(
            f"{len(device_ips)} device addresses (--device-ips) for {len(servers)} servers (--servers); every server "
            "needs the same number of devices"
        )
    per_server = len(device_ips) // len(servers)
    ranks = [
        {"device_id": str(rank % per_server), "device_ip": address, "rank_id": str(rank)}
        for rank, address in enumerate(device_ips)
    ]
    in_list = [
        {"server_id": server, "device": ranks[n * per_server : (n + 1) * per_server], "host_nic_ip": "reserve"}
        for n, server in enumerate(servers)
    ]
    table = {"version": "1.0", "server_count": str(len(servers)), "server_list": in_list, "status": "completed"}
    if problems := rank_table_problems(table):
        raise ConfigError("no rank table can be made of this:\n" + "\n".join(problems))
    return table


def read_rank_table(path: Path, n_devices: int | None = None) -> list[Device]:
    """Return the devices of a table by rank; there must be ``n_devices`` of them (``--devices``) if that is given.

    Raises:
        ConfigError: lists everything that is wrong with the table.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ConfigError(f"--rank-table is {str(path)!r}, which is too large to be a rank table")
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"--rank-table is {str(path)!r}, which is not found; make one by dimred rank-table") from None
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"--rank-table is {str(path)!r}, which can't be read as JSON ({why})") from error
    if problems := rank_table_problems(table, n_devices):
        raise ConfigError(f"--rank-table {str(path)!r} can't be used:\n" + "\n".join(problems))
    return _devices(_Table.model_validate(table))


def rank_table_problems(table: Any, n_devices: int | None = None) -> list[str]:
    """Return everything that is wrong with a table, one sentence each."""
    try:
        return list(_disagreements(_Table.model_validate(table), n_devices))
    except ValidationError as error:
        return [_in_words(problem) for problem in error.errors(include_url=False, include_context=False)]


def _in_words(problem: Any) -> str:
    """Describe what is wrong with the form of a table."""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).removeprefix(".")
    if problem["type"] == "missing":
        return f"the field {where!r} is missing"
    return f"{where or 'the table'} is {shown(problem['input'], 40)}: {problem['msg']}"


def _disagreements(table: _Table, n_devices: int | None) -> Iterator[str]:
    """Yield what is wrong with the numbers in a table of the right form."""
    servers, devices = table.server_list, _devices(table)
    wanted = {"version": "1.0", "status": "completed", "server_count": str(len(servers))}
    for field, value in wanted.items():
        if getattr(table, field) != value:
            yield f"{field} is {shown(getattr(table, field))}; it must be {value!r}"
    if n_devices is not None and len(devices) != n_devices:
        yield f"it has {len(devices)} devices, but --devices is {n_devices}"
    yield from _doubles("server_id", [server.server_id for server in servers])
    yield from _doubles("device_ip", [device.device_ip for device in devices])
    per_server = len(servers[0].device)
    for number, server in enumerate(servers):
        where, first = f"server_list[{number}]", number * per_server
        yield from _doubles(f"{where}: device_id", [row.device_id for row in server.device])
        ranks = sorted(int(row.rank_id) for row in server.device)
        if ranks != list(range(first, first + per_server)):
            yield (
                f"{where} has the ranks {', '.join(map(str, ranks))}; it must have {first} to "
                f"{first + per_server - 1}, because each server has as many, and ranks are numbered server by server"
            )


def _doubles(what: str, values: Sequence[Any]) -> Iterator[str]:
    for value, count in Counter(values).items():
        if count > 1:
            yield f"{what} {value} is there {count} times"


def _devices(table: _Table) -> list[Device]:
    return sorted(
        Device(int(row.rank_id), str(server.server_id), int(row.device_id), str(row.device_ip))
        for server in table.server_list
        for row in server.device
    )
