"""``dimred rank-table`` makes or checks the rank table that Ascend hosts use."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dimred.console import check_new_file
from dimred.io.atomic import atomic_write

rank_table = typer.Typer(no_args_is_help=True, help="Make or check the table of ranks that Ascend hosts use.")


@rank_table.command("make")
def make_table(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; must not exist.", callback=check_new_file)],
    device_ips: Annotated[
        str, typer.Option(help="The devices' addresses, separated by commas, server by server (hccn_tool shows them).")
    ],
    servers: Annotated[str, typer.Option(help="The servers' addresses, separated by commas.")] = "127.0.0.1",
) -> None:
    """Write a rank table.

    Example: dimred rank-table make table.json --servers 10.0.0.1 --device-ips 192.168.1.1,...
    """
    from dimred.launch.rank_table import make_rank_table

    hosts, devices = ([part.strip() for part in text.split(",")] for text in (servers, device_ips))
    table = make_rank_table(hosts, devices)
    atomic_write(out, json.dumps(table, indent=2) + "\n")
    print(f"{out}: ranks: {len(devices)}, servers: {len(hosts)}")


@rank_table.command("check")
def check_table(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="The JSON file.", exists=True, dir_okay=False)],
    devices: Annotated[int | None, typer.Option(min=1, help="Number of devices that the job needs.")] = None,
) -> None:
    """List the devices of a rank table, or everything that is wrong with it; exit status 0 if it can be used.

    Example: dimred rank-table check rank_tables/rank_table_8pcs.json
    """
    from dimred.launch.rank_table import read_rank_table

    for device in read_rank_table(table, devices):
        print(f"rank {device.rank}: device {device.device_id} ({device.device_ip}) on server {device.server_id}")
