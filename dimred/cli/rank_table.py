"""``dimred rank-table``: make or check the file that tells Ascend hosts which rank runs on which device."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dimred.console import AsJson, check_new_file

rank_table = typer.Typer(no_args_is_help=True, help="Make or check the table of ranks that Ascend hosts use.")


@rank_table.command("make")
def make_table(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; must not exist.", callback=check_new_file)],
    device_ips: Annotated[
        str, typer.Option(help="The devices' addresses with commas between, server by server (hccn_tool shows them).")
    ],
    servers: Annotated[str, typer.Option(help="The servers' addresses with commas between.")] = "127.0.0.1",
) -> None:
    """Write a rank table. Example: dimred rank-table make table.json --servers 10.0.0.1 --device-ips 192.168.1.1,..."""
    from dimred.io.atomic import atomic_write
    from dimred.launch.rank_table import make_rank_table

    hosts, devices = ([part.strip() for part in text.split(",")] for text in (servers, device_ips))
    table = make_rank_table(hosts, devices)
    atomic_write(out, json.dumps(table, indent=2) + "\n")
    print(f"{out}: {len(devices)} ranks on {len(hosts)} servers")


@rank_table.command("check")
def check_table(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="The JSON file.")],
    devices: Annotated[int | None, typer.Option(min=1, help="How many devices the job is to have.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a rank table, all of it at once; exit status 0 if it can be used.

    Example: dimred rank-table check rank_tables/rank_table_8pcs.json
    """
    from dimred.launch.rank_table import read_rank_table

    found = read_rank_table(table, devices)
    if as_json:
        print(json.dumps({"devices": [device._asdict() for device in found]}))
        return
    for device in found:
        print(f"rank {device.rank}: device {device.device_id} ({device.device_ip}) of server {device.server_id}")
