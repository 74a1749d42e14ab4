"""A cluster's variables that are left over reach no process that is not one of its ranks; Ascend is looked for."""

import inspect
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from mindspore import save_checkpoint
from mindspore.parallel.cluster.process_entity import _api as msrun

from dimred.launch.ascend import ascend_devices
from dimred.launch.devices import choose_devices
from dimred.launch.environment import without_cluster
from dimred.launch.launcher import launch
from dimred.launch.programs import start
from tests.helpers import needs, tiny_task
from tests.helpers.commands import REPOSITORY, dimred
from tests.launch.jobs import job

OF_ANOTHER_JOB = {
    "MS_ROLE": "MS_WORKER",
    "MS_WORKER_NUM": "8",
    "MS_NODE_ID": "3",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
    "RANK_ID": "3",
    "RANK_SIZE": "8",
    "RANK_TABLE_FILE": "/of/another/job.json",
}


@pytest.fixture
def left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OF_ANOTHER_JOB.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_a_command_inside_another_job_is_alone(left_over: None, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(tiny_task.TASK))
    save_checkpoint(tiny_task.network(3), str(tmp_path / "one.ckpt"))
    environment = {"MS_TOPO_TIMEOUT": "5", "PYTHONPATH": str(REPOSITORY)}
    command = ("eval", ".", "one.ckpt", "--config", "one.yaml")
    shown = dimred(*command, cwd=tmp_path, environment=environment, status=0).stdout
    assert shown.startswith("accuracy on 'val': ")


@pytest.mark.parametrize("devices", [1, 2])
def test_a_job_inside_another_one_has_its_own_ranks(left_over: None, tmp_path: Path, devices: int) -> None:
    own = job(tmp_path, "fine", devices=devices)
    every = without_cluster(os.environ) | own.environment() | own.rank_environment(0)
    own_values = {name: every.get(name) for name in OF_ANOTHER_JOB}
    expected = {"RANK_ID": "0", "RANK_SIZE": str(devices)}
    if devices == 2:
        expected |= {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2", "MS_NODE_ID": "0", "MS_SCHED_HOST": "127.0.0.1"}
        expected |= {"MS_SCHED_PORT": str(own.master_port)}
    assert own_values == dict.fromkeys(OF_ANOTHER_JOB) | expected
    if devices == 1:
        assert launch(own) == 0
        variables = (tmp_path / "device0_stage_1" / "env.log").read_text().splitlines()
        assert {"RANK_ID=0", "RANK_SIZE=1"} <= {*variables}
        assert not [line for line in variables if line.startswith(("MS_ROLE", "MS_WORKER", "MS_SCHED", "RANK_TABLE"))]


def test_a_single_rank_keeps_the_device_that_was_chosen_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_ID", "5")
    alone, two = (job(tmp_path, "fine", devices=devices, device_target="Ascend") for devices in (1, 2))
    assert "DEVICE_ID" not in alone.rank_environment(0)
    assert two.rank_environment(1)["DEVICE_ID"] == "1"


@needs.ANY_NAME
def test_a_variable_and_a_folder_that_are_not_utf_8_are_logged_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a terminal that is set to Latin-1; Python has their odd bytes as surrogates."""
    monkeypatch.setenv("MS_OWNER", os.fsdecode(b"J\xfcrgen"))
    out = tmp_path / os.fsdecode(b"f\xfcr mich")
    assert launch(job(out, "fine", devices=1)) == 0
    logged = (out / "device0_stage_1" / "env.log").read_bytes()
    assert b"MS_OWNER=J\xfcrgen\n" in logged
    assert os.fsencode(out) in logged


def test_a_program_that_a_program_starts_is_alone(left_over: None, tmp_path: Path) -> None:
    with ExitStack() as running:
        code = "import os; print(os.environ.get('MS_ROLE'), os.environ.get('RANK_ID'), 'PATH' in os.environ)"
        process = start(running, [sys.executable, "-c", code], tmp_path / "log")
        assert process.wait() == 0
    assert (tmp_path / "log").read_text() == "None None True\n"


def test_what_msrun_sets_is_left_out_but_preferences_are_not() -> None:
    """Derived from the source of this MindSpore, so that another one's variables are noticed."""
    names = {*re.findall(r"environ\[[\"'](\w+)[\"']\] = ", inspect.getsource(msrun))}
    preferences = {"MS_TOPO_TIMEOUT", "DEVICE_ID", "MS_SIMULATION_LEVEL"}
    assert {"MS_ROLE", "RANK_ID"} < names
    assert {*without_cluster(dict.fromkeys(names | {"PATH", "MS_WORKER_IP"}, "1"))} == (
        (names & preferences) | {"PATH", "MS_WORKER_IP"}
    )


def test_without_a_driver_it_is_the_cpu_and_one_rank_for_each_host(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert choose_devices(None, None) == ("CPU", 1)
    assert choose_devices(None, None, nodes=3) == ("CPU", 3)
    assert choose_devices(None, 4) == ("CPU", 4)
    assert choose_devices("CPU", None) == ("CPU", 1)
    said = r"device: CPU, 1 rank \(no Ascend device; .*; --device-target and --devices change this\)"
    assert re.fullmatch(said, caplog.messages[0])
    assert len(caplog.messages) == 4
    assert choose_devices("Ascend", 2) == ("Ascend", 2)
    assert len(caplog.messages) == 4  # nothing was chosen


ASCEND = """
class ascend:
    is_available = staticmethod(lambda: {available})
    device_count = staticmethod(lambda: {count})
"""


@pytest.mark.parametrize(
    ("available", "count", "expected"),
    [("True", "2", ("Ascend", 2)), ("False", "2", ("CPU", 1)), ("True", "1 // 0", ("CPU", 1))],
)
def test_all_devices_that_mindspore_sees_are_used(
    available: str, count: str, expected: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No device is here, so the part of MindSpore that counts them is written for this test."""
    (tmp_path / "mindspore").mkdir()
    (tmp_path / "mindspore" / "__init__.py").write_text("print('a line of the driver')")
    (tmp_path / "mindspore" / "device_context.py").write_text(ASCEND.format(available=available, count=count))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("dimred.launch.ascend.ASCEND_DEVICE", tmp_path)
    assert choose_devices(None, None) == expected
    assert choose_devices(None, None, nodes=2)[1] == 2 * expected[1]


@pytest.mark.slow
def test_a_driver_without_the_rest_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dimred.launch.ascend.ASCEND_DEVICE", tmp_path)
    assert ascend_devices() == 0  # by the MindSpore that is installed, which is the CPU's
