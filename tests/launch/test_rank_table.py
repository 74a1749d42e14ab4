"""Rank tables: what is made can be read, and everything wrong with one is said at once."""

import copy
import json
import re
from pathlib import Path

import pytest

from dimred.errors import ConfigError
from dimred.launch.job import make_job
from dimred.launch.rank_table import make_rank_table, read_rank_table

EIGHT = Path(__file__).parents[2] / "rank_tables" / "rank_table_8pcs.json"
TWO_SERVERS = make_rank_table(["10.0.0.1", "10.0.0.2"], [f"192.168.0.{n}" for n in range(4)])


def written(folder, table):
    path = folder / "table.json"
    path.write_text(json.dumps(table))
    return path


def test_the_table_in_the_repository():
    devices = read_rank_table(EIGHT, 8)
    expected = [(number, "10.0.0.1", number) for number in range(8)]
    assert [(device.rank, device.server_id, device.device_id) for device in devices] == expected


def test_ranks_follow_the_servers(tmp_path):
    devices = [device for server in TWO_SERVERS["server_list"] for device in server["device"]]
    assert [(device["device_id"], device["rank_id"]) for device in devices] == [
        ("0", "0"), ("1", "1"), ("0", "2"), ("1", "3"),
    ]  # fmt: skip
    assert TWO_SERVERS["server_count"] == "2"
    assert len(read_rank_table(written(tmp_path, TWO_SERVERS), 4)) == 4


def test_addresses_may_be_of_both_kinds(tmp_path):
    mixed = make_rank_table(["10.0.0.1", "::2"], ["192.168.0.1", "fe80::1"])
    assert [device.server_id for device in read_rank_table(written(tmp_path, mixed))] == ["10.0.0.1", "::2"]


def set_field(path, value):
    def change(table):
        *parents, last = path
        for part in parents:
            table = table[part]
        if value is None:
            del table[last]
        else:
            table[last] = value

    return change


DEVICE = ("server_list", 1, "device", 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_field(["version"], None), "the field 'version' is missing"),
        (set_field(["version"], "2.0"), "version is '2.0': Input should be '1.0'"),
        (set_field(["server_count"], "3"), "server_count is 3, but server_list has 2"),
        (set_field(["server_list", 0, "device"], None), "'server_list[0].device' is missing"),
        (set_field(["server_list", 0, "server_id"], "10.0.0.2"), "server_id 10.0.0.2 is there 2 times"),
        (set_field(["server_list", 0, "server_id"], "node"), ".server_id is 'node': value is not a valid IPv4"),
        (set_field([*DEVICE, "device_ip"], "192.168.0.0"), "device_ip 192.168.0.0 is there 2 times"),
        (set_field([*DEVICE, "rank_id"], "-1"), "rank_id is '-1': String should match"),
        (set_field([*DEVICE, "rank_id"], "7"), "server_list[1] has the ranks 3, 7; it must have 2 to 3, because"),
        (set_field([*DEVICE, "device_id"], "1"), "server_list[1]: device_id 1 is there 2 times"),
        (lambda table: table["server_list"][1]["device"].pop(), "server_list[1] has the ranks 2; it must have 2 to 3"),
        (lambda table: table["server_list"].reverse(), "server_list[0] has the ranks 2, 3; it must have 0 to 1, "),
    ],
)
def test_each_problem_is_found(tmp_path, change, problem):
    table = copy.deepcopy(TWO_SERVERS)
    change(table)
    with pytest.raises(ConfigError, match=re.escape(problem)):
        read_rank_table(written(tmp_path, table))


def test_all_problems_are_reported_at_once(tmp_path):
    table = copy.deepcopy(TWO_SERVERS)
    for changes, words in (
        ({"version": "0", "status": "?"}, ("version is '0'", "status is '?'")),
        ({"server_count": "3"}, ("server_count is 3", "it has 4 devices, but --devices is 8")),
    ):
        with pytest.raises(ConfigError) as found:
            read_rank_table(written(tmp_path, table | changes), 8)
        assert all(part in str(found.value) for part in words)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00"])
def test_what_is_no_json(tmp_path, text):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"can't be read as JSON|can't be used"):
        read_rank_table(path)


def test_devices_that_can_not_be_divided():
    with pytest.raises(ConfigError, match=r"3 device addresses .* for 2 servers"):
        make_rank_table(["10.0.0.1", "10.0.0.2"], ["192.168.0.1", "192.168.0.2", "192.168.0.3"])
    with pytest.raises(ConfigError, match=r"device_ip 192\.168\.0\.1 is there 2 times"):
        make_rank_table(["10.0.0.1"], ["192.168.0.1", "192.168.0.1"])


def test_the_launch_follows_the_table(tmp_path):
    table = copy.deepcopy(TWO_SERVERS)
    for server in table["server_list"]:
        for device in server["device"]:
            device["device_id"] = str(int(device["device_id"]) + 4)
    path = written(tmp_path, table)
    job = make_job("p", "s", [], out=tmp_path, devices=None, device_target="Ascend", rank_table=path, node_rank=1)
    assert (job.devices, job.nodes, job.master_addr, list(job.local_ranks)) == (4, 2, "10.0.0.1", [2, 3])
    assert job.rank_environment(3)["DEVICE_ID"] == "5"
    assert job.environment()["RANK_TABLE_FILE"] == str(path)
    with pytest.raises(ConfigError, match="--nodes is 3, but --rank-table has 2 servers"):
        make_job("p", "s", [], out=tmp_path, devices=4, device_target="Ascend", rank_table=path, nodes=3, node_rank=0)
