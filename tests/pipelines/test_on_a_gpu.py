"""Each command that computes, from stage 1 to report, on a GPU that does not: it chooses the GPU and comes to its end.

The weights of such a GPU never move, so a search, an evaluation and a report begin with files that a CPU made. Its
losses are 0 and its accuracies nan, of which a report of its own stage 2 could say nothing.
"""

import json
import shutil
from pathlib import Path

import pytest

from dimred.run_files.metrics_file import read_metrics
from tests.helpers.commands import DIGITS, TwoStages, dimred
from tests.helpers.fake_cuda import fake_gpu

pytestmark = pytest.mark.slow

CONVOLUTION = "cudnnConvolutionForward"


@pytest.fixture
def gpu(fake_cuda: Path, tmp_path: Path) -> dict[str, str]:
    return fake_gpu(fake_cuda, FAKE_CUDA_LOG=str(tmp_path / "calls"), FAKE_GPUS="2")


def has_convolved(folder: Path) -> bool:
    return CONVOLUTION in (folder / "calls").read_text().splitlines()


def test_two_ranks_of_stage_1_each_on_a_gpu(two_stages: TwoStages, gpu: dict[str, str], tmp_path: Path) -> None:
    command = ("train", "stage-1", two_stages.data, "--config", DIGITS, "--set=epochs=1")
    done = dimred(*command, cwd=tmp_path, environment=gpu | {"CUDA_VISIBLE_DEVICES": "1,0"}, status=0)
    assert done.stderr.startswith("device: GPU, 2 ranks (no Ascend device; 2 GPUs; ")
    for rank, number in enumerate(("1", "0")):
        variables = (tmp_path / f"device{rank}_stage_1" / "env.log").read_text().splitlines()
        assert f"CUDA_VISIBLE_DEVICES={number}" in variables
    # The ranks count their steps on the device, and this one computes nothing: the number of steps says nothing.
    assert "epoch 1/1  step " in done.stdout
    assert has_convolved(tmp_path)
    assert "ncclAllReduce" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("method", ["search", "cooldown"])
def test_stage_2(method: str, two_stages: TwoStages, gpu: dict[str, str], tmp_path: Path) -> None:
    basis = [two_stages.matrix] if method == "search" else []
    settings = (f"--set=method={method}", "--set=epochs=1", "--devices", 1)
    command = ("train", "stage-2", two_stages.data, two_stages.weights, *basis, "--config", DIGITS, *settings)
    done = dimred(*command, cwd=tmp_path, environment=gpu, status=0)
    assert done.stderr.startswith("device: GPU, 1 rank ")
    assert has_convolved(tmp_path)
    assert read_metrics(tmp_path / "device0_stage_2" / "metrics.jsonl")


def test_eval_and_bench(two_stages: TwoStages, gpu: dict[str, str], tmp_path: Path) -> None:
    done = dimred("eval", two_stages.data, two_stages.weights, "--json", cwd=tmp_path, environment=gpu, status=0)
    assert done.stderr.startswith("device: GPU (no Ascend device; 2 GPUs; --device-target changes this)\n")
    assert json.loads(done.stdout)["split"] == "test"
    assert has_convolved(tmp_path)
    (tmp_path / "calls").unlink()
    command = ("bench", two_stages.data, "--config", DIGITS, "--device-target", "GPU", "--devices", 1)
    done = dimred(*command, cwd=tmp_path, environment=gpu, status=0)
    assert "| fake GPU | 1 |" in done.stdout
    assert has_convolved(tmp_path)


def test_report_of_a_run_of_the_cpu(two_stages: TwoStages, searched: Path, gpu: dict[str, str], tmp_path: Path) -> None:
    command = ("report", searched, "--out", tmp_path / "out", "--grid", 2, "--batches", 1)
    done = dimred(*command, cwd=tmp_path, environment=gpu, status=0)
    assert done.stderr.startswith("device: GPU (")
    assert (tmp_path / "out" / "plane.png").exists()
    assert has_convolved(tmp_path)


def test_compare(two_stages: TwoStages, gpu: dict[str, str], tmp_path: Path) -> None:
    command = ("compare", two_stages.data, two_stages.stage_1, "--methods", "last,stage_2", "--set=epochs=1")
    done = dimred(*command, cwd=tmp_path, environment=gpu, status=0)
    assert done.stderr.startswith("device: GPU (")
    assert len(list((tmp_path / "comparison").glob("seed_*/at_*/*.json"))) == 2
    assert has_convolved(tmp_path)


def test_doctor_makes_its_steps_and_says_that_no_weight_moved(gpu: dict[str, str], tmp_path: Path) -> None:
    """All but the steps are well; a GPU that does not compute is found out by them."""
    cache = tmp_path / "cache"
    variables = {"FAKE_CAPABILITY": "9.0", "CUDA_CACHE_PATH": str(cache)}
    done = dimred("doctor", cwd=tmp_path, environment=gpu | variables, status=1)
    lines = {line[7:].split("  ")[0]: line for line in done.stdout.splitlines()}
    assert lines["driver"].endswith("NVIDIA's driver runs CUDA up to 12.4")
    assert lines["GPU"].endswith("2 x fake GPU, 8.6 GB, compute capability 9.0")
    assert lines["CUDA"].startswith("ok")
    assert lines["cuDNN"].startswith("ok")
    assert lines["kernels"].startswith("ok")
    assert f"about a quarter of an hour, once; it keeps them in {cache}" in lines["kernels"]
    steps = ("one compiled step, 1 rank", "one collective, 2 ranks")
    wrong = [name for name, line in lines.items() if line.startswith("WRONG")]
    assert wrong == list(steps)
    assert all("had the loss 0.0, or changed no weight" in lines[step] for step in steps)
    shutil.rmtree(cache, ignore_errors=True)


def test_doctor_proves_that_a_gpu_is_broken(gpu: dict[str, str], tmp_path: Path) -> None:
    """Products of this GPU are right, and convolutions are not computed."""
    done = dimred("doctor", "--full", "--devices", 2, cwd=tmp_path, environment=gpu, timeout_seconds=1800, status=1)
    (report,) = tmp_path.glob("dimred-doctor-*.json")
    assert f"report: {report}" in done.stdout
    numbers = json.loads(report.read_text())["numbers"]
    for mode in ("graph", "pynative"):
        of_kernels = {one["name"]: one["value"] <= one["limit"] for one in numbers[f"kernels beside NumPy, {mode}"]}
        assert of_kernels["matrix product"]
        assert not of_kernels["convolution"]
        assert f"WRONG  kernels beside NumPy, {mode}" in done.stdout
