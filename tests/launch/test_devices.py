"""The choice of a device, what each rank gets of the host's GPUs, and what is said where something is missing.

The driver is asked in a process of its own, so that here a fake driver answers it in any way.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

import dimred
from dimred.errors import ConfigError
from dimred.launch.devices import DEVICES, choose_device, choose_devices
from dimred.launch.nvidia import CudaCode, ask_driver, cuda_code
from dimred.workarounds.cuda_backend import CUDA_FOLDERS, cuda_kernels
from tests.helpers.fake_cuda import fake_gpu
from tests.launch.jobs import job

GPU = DEVICES["GPU"]


@pytest.fixture
def gpu(fake_cuda: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give processes of this test a fake GPU; called with variables, set these too."""

    def set_variables(**variables: str) -> None:
        for name, value in fake_gpu(fake_cuda, **variables).items():
            monkeypatch.setenv(name, value)

    set_variables()
    return set_variables


def refusal() -> str:
    with pytest.raises(ConfigError) as error:
        GPU.check("--device-target is GPU", "use --device-target CPU")
    return str(error.value)


def test_gpus_are_taken_where_driver_and_libraries_are_there(gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gpu(FAKE_GPUS="3")
    assert choose_devices(None, None) == ("GPU", 3)
    assert choose_devices(None, None, nodes=2) == ("GPU", 6)
    assert choose_devices("CPU", None) == ("CPU", 1)
    assert choose_device(None) == "GPU"
    assert choose_device("CPU") == "CPU"
    assert caplog.messages == [
        "device: GPU, 3 ranks (no Ascend device; 3 GPUs; --device-target and --devices change this)",
        "device: GPU, 6 ranks (no Ascend device; 3 GPUs; --device-target and --devices change this)",
        "device: CPU, 1 rank (--device-target and --devices change this)",
        "device: GPU (no Ascend device; 3 GPUs; --device-target changes this)",
    ]


def test_a_gpu_without_cuda_is_left_out_and_the_first_line_says_how_to_get_it(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.delenv(CUDA_FOLDERS)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "nvidia").exists()])
    assert choose_devices(None, None) == ("CPU", 1)
    assert caplog.messages == [
        "device: CPU, 1 rank (no Ascend device; 1 GPU, but CUDA 11's libraries are not installed: install them, 2.9 "
        "GB, with python -m pip install 'dimred-mindspore[cuda]'; --device-target and --devices change this)"
    ]


@pytest.mark.parametrize(
    ("visible", "count", "of_ranks"),
    [
        (None, 4, ["0", "1", "2", "3"]),
        ("3,1", 2, ["3", "1"]),
        ("GPU-2,GPU-0", 2, ["GPU-2", "GPU-0"]),
        ("2, 0", 1, ["2"]),  # CUDA reads no blank, so that nothing behind it counts
        ("1,9,0", 1, ["1"]),
        ("-1", 0, []),
        ("", 0, []),
    ],
)
def test_each_rank_sees_one_of_the_gpus_that_the_user_shows(
    visible: str | None,
    count: int,
    of_ranks: list[str],
    gpu: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu(FAKE_GPUS="4")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    driver = ask_driver()
    assert driver is not None
    assert len(driver.gpus) == count
    own = job(tmp_path, "fine", devices=count or 1, device_target="GPU")
    environments = [own.rank_environment(rank) for rank in own.local_ranks][:count]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments] == of_ranks
    assert {one["DEVICE_ID"] for one in environments} <= {"0"}  # the first that the rank sees
    too_many = rf"asks for {count + 1} GPUs on this host, but MindSpore can use {count};"
    with pytest.raises(ConfigError, match=too_many if count else "finds no GPU"):
        GPU.check("--device-target is GPU", "use --device-target CPU", count + 1, joins=count > 0)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"FAKE_DRIVER": "10.2"}, "driver runs CUDA up to 10.2; install version 450.80 or newer, for CUDA 11, or use "),
        ({"FAKE_FAULT": "803"}, "driver fails (an error of the fake, 803); look at nvidia-smi, and restart the "),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "finds no GPU, and CUDA_VISIBLE_DEVICES is '7'; name GPUs of this machine in "),
        ({"FAKE_CAPABILITY": "5.2"}, "5.2 are not in its package, which begins at 6.0; use a newer GPU, or use "),
        ({CUDA_FOLDERS: "/nowhere"}, "DIMRED_CUDA is '/nowhere', where libcudart.so.11.0, libnvrtc.so.11.2, "),
    ],
)
def test_each_missing_piece_is_one_line_with_the_remedy(variables: dict[str, str], said: str, gpu: Any) -> None:
    gpu(**variables)
    assert said in refusal()
    assert refusal().startswith("--device-target is GPU, but ")
    assert "\n" not in refusal()


def test_without_a_driver_it_is_said_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    if ask_driver() is not None:
        pytest.skip("this machine has a driver")
    assert refusal() == (
        "--device-target is GPU, but this machine has no NVIDIA driver (libcuda.so.1 can't be loaded); install "
        "NVIDIA's driver, or use --device-target CPU"
    )


def test_a_mindspore_without_the_backend_is_told_from_a_missing_cuda(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of Linux on aarch64, whose package lacks it."""
    (tmp_path / "mindspore").mkdir()
    (tmp_path / "mindspore" / "__init__.py").touch()
    found = dimred.workarounds.cuda_backend.find_spec

    def find(name: str) -> Any:
        spec = found("dimred") if name == "mindspore" else found(name)
        if name == "mindspore":
            spec.origin = str(tmp_path / "mindspore" / "__init__.py")
        return spec

    monkeypatch.setattr("dimred.workarounds.cuda_backend.find_spec", find)
    assert "has no backend for GPUs here (libmindspore_gpu.so.11.6 is missing from its package); " in refusal()


def test_a_backend_can_t_be_loaded_once_mindspore_is_imported(gpu: Any) -> None:
    assert "mindspore" in sys.modules
    with pytest.raises(
        ConfigError, match=r"MindSpore is already imported, .*; call dimred\.use_gpu\(\) before the first"
    ):
        dimred.use_gpu()


def test_the_kernels_in_the_package_are_native_up_to_8_and_compiled_from_9_on(fake_cuda: Path) -> None:
    """Machine code runs on GPUs of the same major number, as NVIDIA's compatibility guides say."""
    code = cuda_code(cuda_kernels())
    assert code == CudaCode(((6, 0), (6, 1), (7, 0), (7, 5), (8, 0)), ((6, 0), (8, 6)))
    capabilities = [(6, 0), (6, 2), (7, 2), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0), (5, 2)]
    assert [code.runs_on(capability) for capability in capabilities] == [True] * 7 + [False] * 3
    assert [code.is_compiled_for(capability) for capability in capabilities] == [False] * 7 + [True, True, False]


def test_a_driver_that_does_not_answer_is_a_fault_and_no_end(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    driver = ask_driver()
    assert driver is not None
    assert driver.fault == "the program that asks it ended with status 1"
    assert "NVIDIA's driver fails (the program that asks it ended with status 1); look at nvidia-smi" in refusal()
