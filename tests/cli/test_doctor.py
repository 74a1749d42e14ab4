"""``dimred doctor`` on this machine, and on machines where something is missing."""

import importlib.metadata
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mindspore
import pytest

from dimred.workarounds.onednn_cap import has_avx512
from tests.helpers.commands import dimred_here


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    with (tmp_path / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(min(4096, 65536 - file.tell()))):
            pass
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def wrong(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("WRONG")]


@pytest.mark.slow
def test_a_machine_where_all_is_well(tmp_path: Path) -> None:
    process = dimred_here("doctor", cwd=tmp_path, status=0)
    assert process.stdout.endswith("all is well\n")
    names = re.findall(r"^ok     (.*?)  ", process.stdout, re.MULTILINE)
    steps = ["one compiled step, 1 rank", "one collective, 2 ranks"]
    assert names == ["versions", "device", "memory", "disk", "oneDNN", *steps]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_taken_port_fails_the_collective_but_not_the_step(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = dimred_here("doctor", "--master-port", port, cwd=tmp_path)
    assert process.returncode == 1
    (line,) = wrong(process.stdout)
    assert "one collective, 2 ranks" in line
    assert f"port {port} of --master-addr" in line
    assert "name another --master-port" in line
    assert not list(tmp_path.iterdir())


def test_without_an_ascend_device_and_cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    process = dimred_here("doctor", "--device-target", "Ascend", cwd=tmp_path, status=1)
    device, cann = wrong(process.stdout)
    assert "this host has no Ascend device (/dev/davinci_manager is missing); install the driver" in device
    assert "source its set_env.sh" in cann
    assert process.stdout.endswith("2 of 6 need fixing\n")  # no job was tried


def test_a_report_is_written_also_where_nothing_can_be_computed(tmp_path: Path) -> None:
    process = dimred_here("doctor", "--full", "--device-target", "Ascend", cwd=tmp_path, status=1)
    (path,) = tmp_path.iterdir()
    assert f"report: {path}\n" in process.stdout
    report = json.loads(path.read_text())
    assert report["device target"] == "Ascend"
    assert report["numbers"] == {}
    remedies = [f"{result['text']}; {result['remedy']}" for result in report["results"] if result["remedy"]]
    assert [line.split("  ")[-1] for line in wrong(process.stdout)] == remedies


def test_a_cann_that_is_there_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version.cfg").write_text("# comment\ntoolkit_running_version=[8.5.0]\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    process = dimred_here("doctor", "--device-target", "Ascend", cwd=tmp_path)
    line = next(line for line in process.stdout.splitlines() if "CANN" in line)
    beginning = f"ok     CANN                          {tmp_path} (toolkit_running_version=[8.5.0]; MindSpore "
    assert line.startswith(beginning)
    made_for = re.search(r" is released with CANN (\d+\.\d+)\)$", line)
    assert made_for
    of_kernels = Path(mindspore.__file__).parent / "lib/plugin/ascend/custom_ascendc_910b/version.info"
    if of_kernels.exists():  # it names the CANN that MindSpore's own kernels were compiled with
        assert of_kernels.read_text().strip().endswith(f"={made_for[1]}.0")


def test_without_nvidias_driver_and_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setenv("DIMRED_CUDA", "/nowhere")
    process = dimred_here("doctor", "--device-target", "GPU", cwd=tmp_path, status=1)
    driver, cuda = wrong(process.stdout)
    assert re.search(r"driver  .*NVIDIA.*; (install NVIDIA's driver|name GPUs of this machine)", driver)
    assert re.search(r"CUDA  .*DIMRED_CUDA is '/nowhere', where libcudart.*; name folders with all of CUDA 11's", cuda)
    assert process.stdout.endswith("2 of 6 need fixing\n")


def test_a_full_disk(full_disk: Path) -> None:
    process = dimred_here("doctor", cwd=full_disk, status=1)
    (line,) = wrong(process.stdout)
    assert "nothing can be written (No space left on device); make room" in line


def test_without_mindspore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: find({"mindspore": "none"}.get(name, name)))
    process = dimred_here("doctor", cwd=tmp_path, status=1)
    assert wrong(process.stdout) == [
        "WRONG  mindspore                     not installed; install what training needs with "
        "python -m pip install 'dimred-mindspore[train]'"
    ]


def test_versions_that_the_requirements_do_not_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.metadata.version
    old = {"mindspore": "2.6.0", "numpy": "2.1.0"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: old.get(name) or find(name))
    mindspore, numpy = wrong(dimred_here("doctor", "--device-target", "Ascend", cwd=tmp_path).stdout)[:2]
    assert "mindspore                     2.6.0; training needs another version: python -m pip install '" in mindspore
    assert "2.1.0; training needs another version: python -m pip install 'numpy" in numpy


@pytest.mark.skipif(not has_avx512(), reason="a host without AVX-512 needs no cap")
def test_an_instruction_set_that_is_not_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "ONEDNN_MAX_CPU_ISA", "ALL")
    process = dimred_here("doctor", "--device-target", "Ascend", cwd=tmp_path)
    assert (
        "WRONG  oneDNN                        instruction set capped at ALL; unset ONEDNN_MAX_CPU_ISA" in process.stdout
    )
