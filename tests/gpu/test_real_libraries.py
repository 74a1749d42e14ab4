"""NVIDIA's real libraries load in the order of the loader, and MindSpore then has a GPU, on a machine without a driver.

A fake driver stands in for the real one, without which nothing loads; so the first operation must fail, because CUDA's
runtime finds out. The libraries are those of the extra ``cuda``, or of DIMRED_TEST_CUDA, a folder with ``nvidia/``.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers.commands import DIMRED, REPOSITORY, run

pytestmark = pytest.mark.cuda

ORDER = """
import sys
import dimred
from dimred.workarounds.cuda_backend import cuda_backend, cuda_libraries, is_loaded
print(*[is_loaded(path) for path in (*cuda_libraries().values(), cuda_backend())])
dimred.use_gpu()
print(*[is_loaded(path) for path in (*cuda_libraries().values(), cuda_backend())])
import mindspore as ms
print(ms.get_context("device_target"))
try:
    ms.ops.ones((2, 2), ms.float32).asnumpy()
except RuntimeError as error:
    print(str(error))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheels that pyproject.toml names into a folder."""
    if "DIMRED_TEST_CUDA" in os.environ:
        return Path(os.environ["DIMRED_TEST_CUDA"])
    folder = tmp_path_factory.mktemp("wheels")
    wheels = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cuda"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder, *wheels], check=True)
    return folder


@pytest.fixture
def with_a_fake_driver(site: Path, fake_cuda: Path, tmp_path: Path) -> dict[str, str]:
    shutil.copy(fake_cuda / "libcuda.so.1", tmp_path)
    return {"PYTHONPATH": f"{site}:{REPOSITORY}", "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}


def test_all_load_and_the_first_operation_tells_the_driver_from_a_real_one(
    with_a_fake_driver: dict[str, str], tmp_path: Path
) -> None:
    done = run(sys.executable, "-c", ORDER, environment=with_a_fake_driver, cwd=tmp_path, timeout_seconds=600)
    before, after, device, *_ = done.stdout.splitlines()
    assert before == " ".join(["False"] * 10), done.stderr
    assert after == " ".join(["True"] * 10)
    assert device == "GPU"
    assert "API call is not supported in the installed CUDA driver" in done.stdout, done.stdout + done.stderr


def test_doctor_names_the_versions_and_a_run_is_refused_on_one_line(
    with_a_fake_driver: dict[str, str], tmp_path: Path
) -> None:
    done = run(DIMRED, "doctor", environment=with_a_fake_driver, cwd=tmp_path, status=1)
    assert re.search(r"^ok     CUDA                          11\.8\.89, in ", done.stdout, re.MULTILINE)
    assert re.search(r"^ok     cuDNN                         8\.9\.6\.50, in ", done.stdout, re.MULTILINE)
    (wrong,) = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    assert "one compiled step, 1 rank     failed; --device-target is GPU, on which MindSpore can't compute: " in wrong
    assert "dimred doctor checks what it needs" in wrong


def test_without_a_driver_the_libraries_alone_are_refused(site: Path, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": f"{site}:{REPOSITORY}", "LD_LIBRARY_PATH": str(tmp_path)}
    done = run(sys.executable, "-c", "import dimred; dimred.use_gpu()", environment=environment, cwd=tmp_path)
    if "finds no GPU" in done.stderr:
        pytest.skip("this machine has a driver")
    assert done.stderr.splitlines()[-1] == (
        "dimred.errors.ConfigError: dimred.use_gpu() is called, but this machine has no NVIDIA driver (libcuda.so.1 "
        "can't be loaded); install NVIDIA's driver, or leave the call out"
    )
