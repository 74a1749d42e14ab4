"""Rank tables: which device of which server is which rank, in the JSON form that Ascend's collective library reads."""

import ipaddress
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dimred.errors import ConfigError

_LARGEST_FILE = 16 * 2**20  # bytes; a table has about 100 for each device


class Device(NamedTuple):
    """One row of a table.

    Attributes:
        rank: over all servers, from 0.
        server: number of its server in the table, from 0.
        server_id: that server's address.
        device_id: number of the device on its server.
        device_ip: the address of the device's own network card.
    """

    rank: int
    server: int
    server_id: str
    device_id: int
    device_ip: str


def make_rank_table(servers: Sequence[str], device_ips: Sequence[str]) -> dict[str, Any]:
    """A table in which ranks follow the servers and, on each server, its devices 0, 1, ...

    Args:
        servers: the servers' addresses; the first is node 0.
        device_ips: the devices' addresses, all of the first server, then all of the second, ...

    Raises:
        ConfigError: the devices can't be divided equally, or an address is not one or is given twice.
    """
    if not servers or not device_ips or len(device_ips) % len(servers):
        raise ConfigError(
            f"{len(device_ips)} device addresses (--device-ips) for {len(servers)} servers (--servers); every server "
            "needs the same number of devices"
        )
    per_server = len(device_ips) // len(servers)
    table = {
        "version": "1.0",
        "server_count": str(len(servers)),
        "server_list": [
            {
                "server_id": server,
                "device": [
                    {"device_id": str(device), "device_ip": device_ips[rank], "rank_id": str(rank)}
                    for device, rank in enumerate(range(number * per_server, (number + 1) * per_server))
                ],
                "host_nic_ip": "reserve",
            }
            for number, server in enumerate(servers)
        ],
        "status": "completed",
    }
    problems = rank_table_problems(table)
    if problems:
        raise ConfigError("no rank table can be made of this:\n" + "\n".join(problems))
    return table


def read_rank_table(path: Path, n_devices: int | None = None) -> list[Device]:
    """The devices of a table, by rank.

    Args:
        path: the JSON file.
        n_devices: how many it must have, ``--devices``; any number by default.

    Raises:
        ConfigError: lists everything that is wrong with it.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ConfigError(f"--rank-table is {str(path)!r}, which is too large to be a rank table")
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"--rank-table is {str(path)!r}, which can't be read as JSON ({why})") from error
    problems = rank_table_problems(table, n_devices)
    if problems:
        raise ConfigError(f"--rank-table {str(path)!r} can't be used:\n" + "\n".join(problems))
    return sorted(_devices(table))


def rank_table_problems(table: Any, n_devices: int | None = None) -> list[str]:
    """Everything that is wrong with a table, one sentence each; empty for a good one."""
    problems = list(_form_problems(table))
    if problems:
        return problems  # without its form, its numbers can't be compared
    return list(_number_problems(table, list(_devices(table)), n_devices))


def _form_problems(table: Any) -> Iterator[str]:
    """Missing fields, and fields of another kind."""
    if not isinstance(table, dict):
        yield f"a rank table is a JSON object, not {type(table).__name__}"
        return
    for field in ("version", "server_count", "status"):
        if field not in table:
            yield f"the field {field!r} is missing"
    servers = table.get("server_list")
    if not isinstance(servers, list) or not servers:
        yield "the field 'server_list' is missing, or not a list of servers"
        return
    for number, server in enumerate(servers):
        where = f"server_list[{number}]"
        if not isinstance(server, dict) or not isinstance(server.get("device"), list) or not server["device"]:
            yield f"{where} has no list 'device'"
            continue
        yield from _address_problem(server, "server_id", where)
        for index, device in enumerate(server["device"]):
            inside = f"{where}.device[{index}]"
            if not isinstance(device, dict):
                yield f"{inside} is not an object"
                continue
            yield from _address_problem(device, "device_ip", inside)
            for field in ("device_id", "rank_id"):
                text = str(device.get(field, ""))
                if not (text.isascii() and text.isdigit() and len(text) < 9):
                    yield f"{inside}.{field} is {_short(device.get(field))}; it must be a number from 0"


def _address_problem(holder: dict[str, Any], field: str, where: str) -> Iterator[str]:
    try:
        ipaddress.ip_address(holder.get(field, ""))
    except ValueError:
        yield f"{where}.{field} is {_short(holder.get(field))}; it must be an IP address"


def _number_problems(table: dict[str, Any], devices: list[Device], n_devices: int | None) -> Iterator[str]:
    """Counts, doubles and gaps."""
    servers = table["server_list"]
    if str(table["version"]) != "1.0":
        yield f"version is {_short(table['version'])}; 1.0 is the one that is understood"
    if table["status"] != "completed":
        yield f"status is {_short(table['status'])}; it must be 'completed'"
    if str(table["server_count"]) != str(len(servers)):
        yield f"server_count is {_short(table['server_count'])}, but server_list has {len(servers)}"
    if n_devices is not None and len(devices) != n_devices:
        yield f"it has {len(devices)} devices, but --devices is {n_devices}"
    yield from _doubles("server_id", [server["server_id"] for server in servers])
    yield from _doubles("device_ip", [device.device_ip for device in devices])
    yield from _doubles("rank_id", [device.rank for device in devices])
    missing = sorted(set(range(len(devices))) - {device.rank for device in devices})
    if missing:
        yield f"rank_id {missing[0]} is missing; {len(devices)} devices have the ranks 0 to {len(devices) - 1}"
    for number in range(len(servers)):
        here = [device for device in devices if device.server == number]
        yield from _doubles(f"server_list[{number}]: device_id", [device.device_id for device in here])
        if len(here) != len(servers[0]["device"]):
            yield (
                f"server_list[{number}] has {len(here)} devices, server_list[0] has {len(servers[0]['device'])}; msrun "
                "needs the same number on every server"
            )
        elif not missing and {device.rank // len(here) for device in here} != {number}:
            first = number * len(here)
            yield (
                f"server_list[{number}] must have the ranks {first} to {first + len(here) - 1}; msrun numbers the "
                "ranks server by server"
            )


def _doubles(what: str, values: Sequence[Any]) -> Iterator[str]:
    for value in sorted({value for value in values if values.count(value) > 1}):
        yield f"{what} {value} is there {values.count(value)} times"


def _devices(table: dict[str, Any]) -> Iterator[Device]:
    for number, server in enumerate(table["server_list"]):
        for row in server["device"]:
            yield Device(int(row["rank_id"]), number, server["server_id"], int(row["device_id"]), row["device_ip"])


def _short(value: Any) -> str:
    return repr(value)[:40]
