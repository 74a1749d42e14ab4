"""Everything that computes, on a GPU that does not: is there a kernel for each operation, and in which precision?

Numbers mean nothing here. What a number of such a GPU would make fail is said beside the test.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from mindspore import save_checkpoint

from dimred.checkpoints.layout import WeightLayout
from dimred.run_files.metrics_file import read_metrics
from tests.gpu.card import FAST, RIGHT
from tests.helpers import tiny_task
from tests.helpers.commands import REPOSITORY, dimred, run
from tests.helpers.fake_cuda import fake_gpu
from tests.helpers.networks import orthonormal_rows

FMA, TENSOR_CORES = "cudnnSetConvolutionMathType 3", "cudnnSetConvolutionMathType 1"
FLOAT32, TF32 = "cublasGemmEx 68", "cublasGemmEx 77"
# What the published way needs: convolutions and BatchNorm by cuDNN, products by cuBLAS, MindSpore's own kernels.
ASKED_FOR = {
    "cudnnConvolutionForward",
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
    "cudnnBatchNormalizationForwardTrainingEx",
    "cudnnBatchNormalizationBackwardEx",
    "cudnnPoolingForward",
    FLOAT32,
}

PROGRAM = """
import os, sys
import dimred
assert "mindspore" not in sys.modules
dimred.use_gpu({})
import mindspore as ms
dimred.use_gpu({})
from mindspore import Tensor, nn
ms.set_context(mode=ms.GRAPH_MODE)
net = nn.SequentialCell(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dense(32, 2))
ones = ms.ops.ones((2, 1, 4, 4), ms.float32)
print(ms.get_context("device_target"), net(ones).shape, os.environ["LD_LIBRARY_PATH"].split(":")[-1])
"""


@pytest.fixture
def gpu(fake_cuda: Path, tmp_path: Path) -> dict[str, str]:
    """Return the variables of processes with a fake GPU, which note what they call in ``calls``."""
    return fake_gpu(fake_cuda, FAKE_CUDA_LOG=str(tmp_path / "calls"), PYTHONPATH=str(REPOSITORY))


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], set[str]]:
    """Return a function that lists what the GPU has been asked for so far, each once."""
    return lambda: set((tmp_path / "calls").read_text().splitlines())


@pytest.mark.parametrize(
    ("argument", "products"),
    [("", {FMA, FLOAT32}), pytest.param("tf32=True", {TENSOR_CORES, TF32}, marks=pytest.mark.slow)],
)
def test_a_program_computes_on_the_gpu_without_a_word_of_mindspore(
    argument: str, products: set[str], gpu: dict[str, str], calls: Callable[[], set[str]], tmp_path: Path
) -> None:
    """MindSpore would warn of a CUDA that it can't find; the backend is loaded before it, by one call."""
    done = run(sys.executable, "-c", PROGRAM.format(argument, argument), environment=gpu, cwd=tmp_path, status=0)
    assert done.stdout.startswith("GPU (2, 2) ")
    assert "cuda" not in done.stderr.lower()
    convolutions = {call for call in calls() if call.startswith(("cudnnSetConvolutionMathType", "cublasGemmEx"))}
    assert convolutions == products


def ask(gpu: dict[str, str], folder: Path, *words: str) -> None:
    """Run parts on the fake GPU, each of which must leave arrays."""
    parts = [word for word in words if not word.startswith("--")]
    command = (sys.executable, "-m", "tests.gpu.on_device", "GPU", folder, *words, "--small")
    done = run(*command, environment=gpu, status=0, timeout_seconds=1800)
    errors = {part: (folder / f"{part}.txt").read_text() for part in parts if (folder / f"{part}.txt").exists()}
    assert not errors
    assert all((folder / f"{part}.npz").exists() for part in parts), done.stdout + done.stderr


@pytest.mark.slow
def test_the_search_and_its_vectors_have_kernels(
    gpu: dict[str, str], calls: Callable[[], set[str]], tmp_path: Path
) -> None:
    ask(gpu, tmp_path / "parts", "search", "vectors")
    assert calls() >= ASKED_FOR
    assert not {TENSOR_CORES, TF32} & calls()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_every_form_of_both_steps_has_kernels(
    mode: str, gpu: dict[str, str], calls: Callable[[], set[str]], tmp_path: Path
) -> None:
    """The list of the operations that were asked for is printed (-s)."""
    parts = [name for name in (*RIGHT, *FAST) if name != "speed_float32"]
    ask(gpu, tmp_path / "parts", *parts, *(["--pynative"] if mode == "pynative" else []))
    assert calls() >= ASKED_FOR
    shown = subprocess.run(["c++filt"], input="\n".join(sorted(calls())), capture_output=True, text=True, check=True)
    print(*sorted({re.split(r"[<(]", line)[0] for line in shown.stdout.splitlines()}), sep="\n")


@pytest.fixture
def stage_1(tmp_path: Path) -> Path:
    """Write a configuration, weights and a basis, and return the path of the weights."""
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(tiny_task.TASK))
    network = tiny_task.network(3)
    np.save(tmp_path / "basis.npy", orthonormal_rows(4, WeightLayout.from_network(network).size))
    save_checkpoint(network, str(tmp_path / "one.ckpt"))
    return tmp_path / "one.ckpt"


@pytest.mark.slow
def test_a_search_by_the_command_line_computes_float32_in_float32(
    stage_1: Path, gpu: dict[str, str], calls: Callable[[], set[str]], tmp_path: Path
) -> None:
    settings = ("--set=precision.tf32=true", "--set=epochs=1", "--set=search.n_components=4")
    command = ("train", "stage-2", ".", stage_1, "basis.npy", "--config", "one.yaml", *settings)
    done = dimred(*command, cwd=tmp_path, environment=gpu, status=0)
    assert done.stderr.startswith("device: GPU, 1 rank (no Ascend device; 1 GPU; --device-target and --devices ")
    assert "have no effect on a search, which computes float32 in float32" in done.stdout
    assert FLOAT32 in calls()
    assert not {TENSOR_CORES, TF32} & calls()
    variables = (tmp_path / "device0_stage_2" / "env.log").read_text().splitlines()
    assert {"CUDA_VISIBLE_DEVICES=0", "DEVICE_ID=0"} <= {*variables}
    assert read_metrics(tmp_path / "device0_stage_2" / "metrics.jsonl")
