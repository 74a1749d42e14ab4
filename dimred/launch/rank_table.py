"""Rank tables: they tell Ascend's collective library which device on which server each rank runs on.

The format is described in Huawei's HCCL user guide, "Rank Table Configuration": version 1.0, and version 1.2 for Atlas
A3. Version 1.2's super pods are not read here, because starting the ranks does not need them; HCCL checks them itself.
"""

import ipaddress
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, IPvAnyAddress, ValidationError

from dimred.errors import ConfigError, shown
from dimred.io.regular_file import open_regular

_LARGEST_FILE = 16 * 2**20  # bytes; a table has about 100 per device
_Number = Annotated[str, Field(pattern="^[0-9]{1,8}$")]
_Name = Annotated[str, Field(min_length=1, max_length=128)]


class _DeviceRow(BaseModel, coerce_numbers_to_str=True):
    device_id: _Number
    device_ip: IPvAnyAddress
    rank_id: _Number


class _ServerRow(BaseModel, coerce_numbers_to_str=True):
    server_id: _Name
    host_ip: IPvAnyAddress | None = None
    device: Annotated[list[_DeviceRow], Field(min_length=1)]

    @property
    def host(self) -> str | None:
        """Return the server's address, perhaps from its name; None if the table does not have it."""
        address = str(self.host_ip or self.server_id)
        return address if _is_address(address) else None


class _Table(BaseModel, coerce_numbers_to_str=True):
    version: Literal["1.0", "1.2"]
    server_count: _Number
    server_list: Annotated[list[_ServerRow], Field(min_length=1)]
    status: Literal["completed"]


class Device(NamedTuple):
    """A device in a rank table."""

    rank: int  # over all servers, from 0
    server_id: str  # name of its server, often the address
    device_id: int  # its number on the server
    device_ip: str  # address of its own network card
    host: str | None  # address of its server; None if the table does not have it


def make_rank_table(servers: Sequence[str], device_ips: Sequence[str]) -> dict[str, Any]:
    """Make a version 1.0 table, to be written as JSON, from the addresses of the servers and all their devices.

    Ranks are numbered server by server, in the order of ``device_ips``; each server's devices are numbered from 0.

    Args:
        servers: the servers' addresses.
        device_ips: the addresses of all devices, server by server, the same number for each server.

    Raises:
        ConfigError: the devices can't be divided equally, or an address is not valid or is given twice.
    """
    if not servers or not device_ips or len(device_ips) % len(servers):
        raise ConfigError(
            f"--device-ips has {len(device_ips)} addresses, but --servers has {len(servers)}; give every server the "
            "same number of devices"
        )
    n = len(device_ips) // len(servers)
    ranks = [
        {"device_id": str(rank % n), "device_ip": address, "rank_id": str(rank)}
        for rank, address in enumerate(device_ips)
    ]
    for server in servers:
        if not _is_address(server):
            raise ConfigError(f"--servers has {shown(server)}, which is not an IPv4 or IPv6 address")
    in_list = [
        {"server_id": server, "device": ranks[number * n : (number + 1) * n], "host_nic_ip": "reserve"}
        for number, server in enumerate(servers)
    ]
    table = {"version": "1.0", "server_count": str(len(servers)), "server_list": in_list, "status": "completed"}
    _devices(table, "no rank table can be made from these addresses")
    return table


def read_rank_table(path: Path, n_devices: int | None = None) -> list[Device]:
    """Read a table's devices, by rank.

    Args:
        path: the JSON file.
        n_devices: how many devices there must be (``--devices``); None for any number.

    Returns:
        The devices, rank 0's first.

    Raises:
        ConfigError: the file can't be read as JSON; fields are missing or have the wrong type; or its numbers
            contradict each other. The message lists all problems of the first of these kinds that is found.
    """
    try:
        with open_regular(path) as file:
            table = json.loads(file.read(_LARGEST_FILE))
    except FileNotFoundError:
        raise ConfigError(f"--rank-table is {str(path)!r}, which does not exist; dimred rank-table makes one") from None
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"--rank-table is {str(path)!r}, which can't be read as JSON ({why})") from error
    return _devices(table, f"--rank-table {str(path)!r} can't be used", n_devices)


def _devices(content: Any, refusal: str, n_devices: int | None = None) -> list[Device]:
    """Check a table, and list its devices by rank."""
    try:
        table = _Table.model_validate(content)
        problems = list(_disagreements(table.server_list, int(table.server_count), n_devices))
    except ValidationError as error:
        problems = [_in_words(problem) for problem in error.errors(include_url=False, include_context=False)]
    if problems:
        raise ConfigError(f"{refusal}:\n" + "\n".join(problems))
    return sorted(
        Device(int(row.rank_id), server.server_id, int(row.device_id), str(row.device_ip), server.host)
        for server in table.server_list
        for row in server.device
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _in_words(problem: Any) -> str:
    """Describe one fault in a table's structure."""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).removeprefix(".")
    if problem["type"] == "missing":
        return f"the field {where!r} is missing"
    if problem["type"] == "model_type":
        return f"{where or 'the table'} is {shown(problem['input'], 40)}; it must be an object, {{...}}"
    return f"{where or 'the table'} is {shown(problem['input'], 40)}: {problem['msg']}"


def _disagreements(servers: Sequence[_ServerRow], server_count: int, n_devices: int | None) -> Iterator[str]:
    """Yield the contradictions between the numbers in a correctly structured table."""
    if server_count != len(servers):
        yield f"server_count is {server_count}, but server_list has {len(servers)}"
    total = sum(len(server.device) for server in servers)
    if n_devices not in (None, total):
        yield f"it has {total} devices, but --devices is {n_devices}"
    yield from _doubles("server_id", [server.server_id for server in servers])
    yield from _doubles("device_ip", [row.device_ip for server in servers for row in server.device])
    per_server = len(servers[0].device)
    for number, server in enumerate(servers):
        where = f"server_list[{number}]"
        first = number * per_server
        yield from _doubles(f"{where}: device_id", [row.device_id for row in server.device])
        ranks = sorted(int(row.rank_id) for row in server.device)
        if ranks != list(range(first, first + per_server)):
            yield (
                f"{where} has the ranks {', '.join(map(str, ranks))}; it must have {first} to "
                f"{first + per_server - 1}, because ranks are numbered server by server, and every server has as many"
            )


def _doubles(field: str, values: Sequence[Any]) -> Iterator[str]:
    for value, count in Counter(values).items():
        if count > 1:
            yield f"{field} {value} appears {count} times"
