"""Rank tables that are made can be read, and every problem of a wrong one is named at once."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dimred.errors import ConfigError
from dimred.launch.device import Target
from dimred.launch.devices import DEVICES
from dimred.launch.job import make_job
from dimred.launch.rank_table import make_rank_table, read_rank_table

EIGHT = Path(__file__).parents[2] / "rank_tables" / "rank_table_8pcs.json"
TWO_SERVERS = json.dumps(make_rank_table(["10.0.0.1", "::2"], ["192.168.0.0", "192.168.0.1", "fe80::2", "192.168.0.3"]))


def written(folder: Path, text: str) -> Path:
    path = folder / "table.json"
    path.write_text(text)
    return path


def test_the_table_in_the_repository() -> None:
    devices = read_rank_table(EIGHT, 8)
    expected = [(number, "10.0.0.1", number) for number in range(8)]
    assert [(device.rank, device.server_id, device.device_id) for device in devices] == expected


def test_ranks_follow_the_servers_whose_addresses_may_be_of_both_kinds(tmp_path: Path) -> None:
    devices = read_rank_table(written(tmp_path, TWO_SERVERS), 4)
    expected = [(0, "10.0.0.1", 0), (1, "10.0.0.1", 1), (2, "::2", 0), (3, "::2", 1)]
    assert [(device.rank, device.server_id, device.device_id) for device in devices] == expected


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"version": "1.0", ', "", "the field 'version' is missing"),
        ('"1.0"', '"2.0"', "version is '2.0': Input should be '1.0' or '1.2'"),
        ('"server_count": "2"', '"server_count": "3"', "server_count is 3, but server_list has 2"),
        ('"device":', '"devices":', "'server_list[0].device' is missing"),
        ("10.0.0.1", "::2", "server_id ::2 appears 2 times"),
        ("10.0.0.1", "", "server_list[0].server_id is ''"),
        ("fe80::2", "192.168.0.0", "device_ip 192.168.0.0 appears 2 times"),
        ('"rank_id": "2"', '"rank_id": "-1"', "rank_id is '-1': String should match"),
        ('"rank_id": "2"', '"rank_id": "7"', "server_list[1] has the ranks 3, 7; it must have 2 to 3, because"),
        ('"device_id": "0"', '"device_id": "1"', "server_list[0]: device_id 1 appears 2 times"),
    ],
)
def test_each_problem_is_found(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in TWO_SERVERS
    with pytest.raises(ConfigError, match=re.escape(problem)):
        read_rank_table(written(tmp_path, TWO_SERVERS.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"version": "0", "status": "?"}, ("version is '0'", "status is '?'")),
        ({"server_count": "3"}, ("server_count is 3", "it has 4 devices, but --devices is 8")),
    ],
)
def test_all_problems_are_reported_at_once(tmp_path: Path, changes: dict[str, str], problems: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as found:
        read_rank_table(written(tmp_path, json.dumps(json.loads(TWO_SERVERS) | changes)), 8)
    assert all(problem in str(found.value) for problem in problems)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00"])
def test_a_table_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"can't be read as JSON|can't be used"):
        read_rank_table(written(tmp_path, text))


def test_a_table_of_another_kind_is_refused_without_the_words_of_the_parser(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\nthe table is \[\]; it must be an object, \{\.\.\.\}$"):
        read_rank_table(written(tmp_path, "[]"))


def test_devices_that_can_not_be_divided_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--device-ips has 3 addresses, but --servers has 2;"):
        make_rank_table(["10.0.0.1", "10.0.0.2"], ["192.168.0.1", "192.168.0.2", "192.168.0.3"])
    with pytest.raises(ConfigError, match=r"device_ip 192\.168\.0\.1 appears 2 times"):
        make_rank_table(["10.0.0.1"], ["192.168.0.1", "192.168.0.1"])


def super_pods() -> dict[str, Any]:
    """Return a table as HCCL's user guide shows it: two super pods of two servers with names, two devices each."""
    servers = [
        {
            "server_id": f"node_{server}",
            "host_ip": f"172.16.0.{100 + server}",
            "device": [
                {
                    "device_id": str(number),
                    "super_device_id": str(2 * (server % 2) + number),
                    "device_ip": f"192.168.{server}.{number}",
                    "device_port": "16666",
                    "rank_id": str(2 * server + number),
                }
                for number in range(2)
            ],
        }
        for server in range(4)
    ]
    pods = [
        {"super_pod_id": f"pod_{pod}", "server_list": [{"server_id": f"node_{2 * pod + n}"} for n in range(2)]}
        for pod in range(2)
    ]
    return {
        "status": "completed",
        "version": "1.2",
        "server_count": "4",
        "server_list": servers,
        "super_pod_list": pods,
    }


def test_super_pods_of_version_1_2(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(super_pods()))
    devices = read_rank_table(path, 8)
    assert [(one.rank, one.server_id, one.device_id, one.host) for one in devices[2:4]] == [
        (2, "node_1", 0, "172.16.0.101"),
        (3, "node_1", 1, "172.16.0.101"),
    ]
    job = make_job("p", "s", [], out=tmp_path, devices=None, device_target="Ascend", rank_table=path, node_rank=1)
    assert (job.devices, job.nodes, job.master_addr, list(job.local_ranks)) == (8, 4, "172.16.0.100", [2, 3])


@pytest.mark.parametrize("target", DEVICES)
def test_every_kind_of_device_has_a_number_beside_a_rank_table(target: Target, tmp_path: Path) -> None:
    """MindSpore starts no rank that has RANK_TABLE_FILE without DEVICE_ID, not even on CPUs."""
    path = written(tmp_path, TWO_SERVERS)
    job = make_job("p", "s", [], out=tmp_path, devices=None, device_target=target, rank_table=path, node_rank=1)
    assert "RANK_TABLE_FILE" in job.environment()
    assert all(job.rank_environment(rank)["DEVICE_ID"].isdecimal() for rank in job.local_ranks)


def test_servers_that_have_names_need_the_address_of_the_first(tmp_path: Path) -> None:
    path = written(tmp_path, TWO_SERVERS.replace("10.0.0.1", "node_0").replace('"::2"', '"node_1"'))
    options = {"out": tmp_path, "devices": None, "device_target": "Ascend", "rank_table": path, "node_rank": 1}
    with pytest.raises(ConfigError, match="--master-addr is missing: with 2 nodes"):
        make_job("p", "s", [], **options)  # type: ignore[arg-type]
    assert make_job("p", "s", [], master_addr="10.0.0.7", **options).master_addr == "10.0.0.7"  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"--servers has 'node_0', which is not an IPv4 or IPv6 address"):
        make_rank_table(["node_0"], ["192.168.0.1"])


def test_the_launch_follows_the_table(tmp_path: Path) -> None:
    path = written(tmp_path, TWO_SERVERS.replace('"device_id": "', '"device_id": "4'))
    job = make_job("p", "s", [], out=tmp_path, devices=None, device_target="Ascend", rank_table=path, node_rank=1)
    assert (job.devices, job.nodes, job.master_addr, list(job.local_ranks)) == (4, 2, "10.0.0.1", [2, 3])
    assert job.rank_environment(3)["DEVICE_ID"] == "41"
    assert job.environment()["RANK_TABLE_FILE"] == str(path)
    with pytest.raises(ConfigError, match="--nodes is 3, but --rank-table has 2 servers"):
        make_job("p", "s", [], out=tmp_path, devices=4, device_target="Ascend", rank_table=path, nodes=3, node_rank=0)
