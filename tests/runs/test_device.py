"""The choice of the device, as far as a host without Ascend can show it, and where native code prints."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import pytest

from dimred.config import StageOneConfig
from dimred.errors import ConfigError
from dimred.runs.device import set_up
from tests.helpers.tiny_run import stage_1_run
from tests.helpers.tiny_task import TASK


def test_a_device_that_mindspore_cannot_use_is_refused_as_configuration():
    with pytest.raises(ConfigError, match=r"--device-target is Ascend, .*Unsupported device target.* set_env\.sh"):
        set_up(1, "Ascend")
    assert ms.get_context("device_target") == "CPU"


class _ChosenError(Exception):
    pass


@pytest.mark.parametrize(("given", "told"), [("5", ("Ascend", 5)), (None, ("Ascend",))])
def test_the_device_is_the_one_that_the_environment_names(monkeypatch, given, told):
    def set_device(*chosen):
        raise _ChosenError(*chosen)

    monkeypatch.setattr(ms, "set_device", set_device)  # there is no device 5 here
    monkeypatch.delenv("DEVICE_ID", raising=False)
    if given is not None:
        monkeypatch.setenv("DEVICE_ID", given)
    with pytest.raises(_ChosenError) as chosen:
        set_up(1, "Ascend")
    assert chosen.value.args == told


def test_the_options_of_the_device_are_set_and_what_cpu_ignores_is_said() -> None:
    code = """
import logging, sys
import mindspore as ms
from mindspore import nn
from dimred.config import StageOneConfig
from dimred.runs.device import set_precision, set_up
from dimred.runs.steps import build_train_step
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
precision = {"jit_level": "O1", "hf32": True, "tf32": True}
config = StageOneConfig.checked({"deterministic": True, "precision": precision, "mode": "pynative"})
set_up(1, deterministic=config.deterministic)
set_up(1, deterministic=config.deterministic)
set_precision(config)
step = build_train_step(config, nn.Dense(2, 2), 5)
levels = {cell.jit_config_dict["jit_level"] for _, cell in step.cells_and_names()}
print(ms.get_context("deterministic"), levels)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "without effect on CPU: deterministic, precision.hf32, precision.jit_level, precision.tf32",
        "without effect in PyNative: precision.jit_level",
        "ON {'O1'}",
    ]


@pytest.mark.slow
def test_a_profile_records_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    config = StageOneConfig.checked(TASK | {"epochs": 1, "profile": {"first_step": 2, "steps": 2}})
    stage_1_run(config)(tmp_path, False)
    assert not (tmp_path / "mindspore.log").exists()  # here standard error is no terminal
    (record,) = (tmp_path / "profile").iterdir()
    kernels = (record / "FRAMEWORK" / "cpu_op_execute_timestamp_0.txt").read_text()
    updates = [line.split(";")[2] for line in kernels.splitlines() if "ApplyMomentum-op" in line]
    assert updates
    assert all(len(times.split()) == 2 for times in updates)  # one each step
    assert (record / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").exists()


PRINTS = """
import os, sys
from pathlib import Path
from dimred.workarounds.native_messages import redirect_native_stderr
with redirect_native_stderr(Path("noise.log")):
    os.write(2, b"native\\n")
    print("python", file=sys.stderr)
os.write(2, b"afterwards\\n")
print("still python", file=sys.stderr)
"""


def test_in_a_terminal_native_output_goes_to_the_file(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    subprocess.run([sys.executable, "-c", PRINTS], cwd=tmp_path, stderr=end, check=True, timeout=60)
    os.close(end)
    assert os.read(terminal, 1000) == b"python\r\nafterwards\r\nstill python\r\n"
    os.close(terminal)
    assert (tmp_path / "noise.log").read_bytes() == b"native\n"
