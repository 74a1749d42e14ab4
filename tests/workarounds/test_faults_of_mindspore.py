"""Each fault of MindSpore that is worked around is still there: a test that fails says which module can be deleted."""

import importlib
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import pytest

import dimred
from dimred.workarounds.failed_gradient import clearing_failures
from dimred.workarounds.onednn_cap import ISA_VARIABLE, has_avx512
from tests.helpers import needs
from tests.helpers.fake_cuda import fake_gpu

DIMRED = Path(dimred.__file__).parent

START = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
"""

BINARY_CROSS_ENTROPY = """
def gradient(rows):
    x, y = np.zeros((rows, 2), np.float32), np.ones((rows, 2), np.float32)
    return float(ms.grad(nn.BCEWithLogitsLoss())(Tensor(x), Tensor(y)).asnumpy()[0, 0]) * 2 * rows
first, second = gradient(20), gradient(4)
print("binary_cross_entropy", abs(first + 0.5) < 1e-6 and abs(second + 0.5) > 0.1)
"""

MOVED_MEMORY = """
layer = nn.Dense(5, 2, has_bias=False)
optimizer = nn.SGD(layer.trainable_params(), 0.05)
step = nn.TrainOneStepCell(nn.WithLossCell(layer, nn.MSELoss()), optimizer).set_train()
batch = Tensor(np.ones((3, 5), np.float32)), Tensor(np.ones((3, 2), np.float32))
step(*batch)
layer.weight.set_data(Tensor(np.full((2, 5), 2, np.float32)))
step(*batch)
print("moved_memory", bool((layer.weight.asnumpy() == 2).all()))
"""

FAILED_GRADIENT = """
class Broken(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(5, 2)
    def construct(self, x):
        self.layer(x)
        raise KeyError
for _ in range(2):
    broken = Broken()
    try:
        ops.value_and_grad(broken, None, broken.trainable_params())(Tensor(np.ones((3, 5), np.float32)))
    except KeyError:
        pass
try:
    is_wrong = Tensor(np.ones((3, 5), np.float32))[1].shape != (5,)
except Exception:
    is_wrong = True
print("failed_gradient", is_wrong)
"""

VISITED_CELLS = """
class Inner(nn.Cell):
    @property
    def compile_phase(self):
        return nn.Cell.compile_phase.fget(self)
    @compile_phase.setter
    def compile_phase(self, phase):
        visits.append(phase)
        nn.Cell.compile_phase.fset(self, phase)
    def construct(self, x):
        return x + 1
class Outer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def construct(self, x):
        return self.inner(x)
visits = []
ms.set_context(mode=ms.GRAPH_MODE)
outer = Outer()
for _ in range(3):
    outer(Tensor(1.0))
print("visited_cells", len(visits) == 3)
"""

LITTER = """
class Broken(nn.Cell):
    def construct(self, x):
        return x.nothing_there(1)
ms.set_context(mode=ms.GRAPH_MODE)
try:
    Broken()(Tensor(1.0))
except Exception:
    pass
import gc
cell = nn.Dense(2, 2)
ms.nn.cell.Cell = None  # as at exit, where a module is cleared before the cells that outlive it
del cell
gc.collect()
"""

CONVOLUTION = "print(nn.Conv2d(8, 8, 3)(Tensor(np.ones((1, 8, 16, 16), np.float32))).shape)"

NATIVE_MESSAGES = """
sys.stderr = open("of_python.log", "w")
try:
    ops.zeros((2**20, 2**22), ms.float32).asnumpy()  # 16 TB
except Exception:
    pass
sys.stderr = sys.__stderr__
print("OF PYTHON", file=sys.stderr, flush=True)
"""


def ran(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder of its own, without the variables that dimred sets and with others."""
    outside = {name: value for name, value in os.environ.items() if name not in ("MS_OM_PATH", "GLOG_v")} | variables
    (folder / "program.py").write_text(code)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env=outside,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.slow
def test_the_faults_of_steps_are_still_there(tmp_path: Path) -> None:
    """A failed gradient spoils what follows, so it comes last."""
    pynative = "ms.set_context(mode=ms.PYNATIVE_MODE)\n"
    done = ran(START + VISITED_CELLS + pynative + BINARY_CROSS_ENTROPY + MOVED_MEMORY + FAILED_GRADIENT, tmp_path)
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    modules = "visited_cells", "binary_cross_entropy", "moved_memory", "failed_gradient"
    assert found == dict.fromkeys(modules, "True"), f"a module may be no longer needed: {done.stderr[-800:]}"


@pytest.mark.parametrize(("gone", "warned"), [(0, False), (1, False), (2, True)])
def test_the_state_of_a_failed_gradient_is_cleared_or_a_warning_says_that_it_is_not(
    gone: int, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MindSpore has the private name in two modules, and later versions may have it in neither."""
    modules = [importlib.import_module(name) for name in ("mindspore.graph.api", "mindspore.common.api")]
    cleared: list[int] = []
    for number, module in enumerate(modules):
        executor = SimpleNamespace(clear_res=partial(cleared.append, number))
        monkeypatch.setattr(module, "_pynative_executor", executor)
    for module in modules[:gone]:
        monkeypatch.delattr(module, "_pynative_executor")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        with pytest.raises(ZeroDivisionError):
            clearing_failures(lambda: 1 / 0)()
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    assert cleared == ([] if warned else [gone])
    assert ("start a new process before you compute another one" in caplog.text) == warned


@pytest.mark.slow
def test_the_faults_of_processes_are_still_there(tmp_path: Path) -> None:
    """Native code prints past Python, and the end leaves a folder and words."""
    done = ran(START + NATIVE_MESSAGES + LITTER, tmp_path)
    past_python, at_exit = done.stderr.split("OF PYTHON\n")
    assert past_python
    assert (tmp_path / "rank_0" / "om").is_dir()
    assert "Exception ignored" in at_exit
    assert "__del__" in at_exit


GPU = """
import mindspore as ms
try:
    ms.set_device("GPU")
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


def test_a_backend_for_gpus_is_not_registered_though_all_its_libraries_are_found(
    fake_cuda: Path, tmp_path: Path
) -> None:
    done = ran(GPU, tmp_path, **fake_gpu(fake_cuda))
    assert "Unsupported device target GPU" in done.stdout, (
        f"cuda_backend.py may be no longer needed: {done.stderr[-800:]}"
    )


VERBOSE = "onednn_verbose,v1,primitive,"

# What oneDNN 3.10.1 of MindSpore 2.10 printed for CONVOLUTION on an Intel Xeon with AVX-512, by the cap.
RECORDED = {
    "ALL": "jit_uni_ncsp:conv+ref:any,forward_training,src:f32 wei:f32,,,mb1_ic8,2.5",
    "AVX2": "x64:gemm:jit,forward_training,src:f32 wei:f32,,,mb1_ic8,48.2",
    "SSE41": "x64:gemm:jit,forward_training,src:f32 wei:f32,,,mb1_ic8,2.4",
}
TEMPLATE = (
    f"{VERBOSE}info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,attributes,"
    "auxiliary,problem_desc,exec_time"
)


def kernel_of_convolution(printed: str) -> str:
    """Return the kernel of the one convolution in oneDNN's log, whose template line names the fields."""
    lines = [line.removeprefix(VERBOSE) for line in printed.splitlines() if line.startswith(VERBOSE)]
    [fields] = [line.partition("template:")[2].split(",") for line in lines if "template:" in line]
    runs = [dict(zip(fields, line.split(","), strict=False)) for line in lines if line.startswith("exec,")]
    [kernel] = {run["implementation"] for run in runs if run["primitive"] == "convolution"}
    return kernel


@pytest.mark.parametrize(("isa", "is_reference"), [("ALL", True), ("AVX2", False), ("SSE41", False)])
def test_a_reference_kernel_is_told_from_others_on_every_machine(isa: str, is_reference: bool) -> None:
    printed = f"{TEMPLATE}\n{VERBOSE}exec,cpu,reorder,simple:any,undef,,,,,0.1\n{VERBOSE}exec,cpu,convolution,"
    assert ("ref" in kernel_of_convolution(printed + RECORDED[isa])) == is_reference


@needs.X86_64
def test_onednn_still_takes_its_reference_kernel_where_it_may_use_avx_512(tmp_path: Path) -> None:
    """And nowhere else: with the cap it has a better one, and so it has on a host without AVX-512."""

    def takes_reference_kernel(isa: str) -> bool:
        done = ran(START + CONVOLUTION, tmp_path, DNNL_VERBOSE="1", **{ISA_VARIABLE: isa})
        return "ref" in kernel_of_convolution(done.stdout)

    assert takes_reference_kernel("ALL") == has_avx512()
    assert not takes_reference_kernel("AVX2")


def test_what_needs_no_workaround_imports_none() -> None:
    """A step guards each call, and with it what it calls as a graph; the rest is for a process or a run as a whole."""
    users = {
        path.relative_to(DIMRED).as_posix()
        for path in DIMRED.rglob("*.py")
        if re.search(r"(from|import) dimred\.workarounds", path.read_text())
    }
    of_steps, of_process = {"train_step/step.py", "search_step/search_step.py"}, {"__init__.py", "cli/machine.py"}
    of_process |= {"launch/gpu.py", "launch/nvidia.py"}
    graphs = {f"train_step/{name}.py" for name in ("gradient", "mean_loss", "weighted_loss")}
    assert users == of_steps | graphs | of_process | {"runs/run.py"}
