"""Mark the quick tests: ``-m quick`` takes them, and ends in four minutes on two cores."""

import functools
import gc
import os
import signal
from pathlib import Path

import mindspore as ms
import pytest
from hypothesis import settings

from tests.helpers.fake_cuda import build_fake_cuda

TESTS = Path(__file__).parent
NOT_QUICK = {"slow", "benchmark", "browser", "torch", "gpu", "cuda"}  # markers
# Folders and files that start training runs or jobs, compile much, or take ten seconds: none is quick, and the workers
# begin with them in this order, so that the short ones fill the gaps at the end.
LONGER = (
    "pipelines/test_progress.py",  # makes the run of both stages, for which other files of pipelines would wait
    "distributed",
    "pipelines",
    "comparison/test_compare.py",
    "stages/test_every_write_event.py",
    "train_step",
    "search_step/test_safety.py",
    "search_step/test_against_twin.py",
    "search_step/test_attention.py",
    "search_step/test_use.py",
    "stages/test_reads.py",
    "stages/test_stage_1.py",
    "stages/test_stage_2.py",
    "stages/test_own_method.py",
    "stages/test_early_stop.py",
    "golden/test_golden.py",
    "gpu",
    "launch/test_launcher.py",
    "cli/test_bench.py",
    "cli/test_doctor.py",
    "merging/test_average.py",
    "merging/test_merge.py",
    "merging/test_merge_goes_on.py",
    "merging/test_user_metric.py",
    "runs/test_device.py",
    "vectors/test_vectors.py",
    "fuzz",
    "power",
    "benchmarks",
)

# Tests compute on the CPU, whatever the machine has; those that need a GPU, or a fake one, show it to their processes.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# A process in a script's background or under nohup ignores these signals, and so do its children; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Threads that hand operators to each other in PyNative cost two busy workers several times what the operators do, here
# and in the processes that tests start.
ms.runtime.launch_blocking()
os.environ["MS_DEV_LAUNCH_BLOCKING"] = "1"
# The threads that share one operator spin while they wait, too. This process has one of them.
ms.device_context.cpu.op_tuning.threads_num(1)

# Collections after every 700 new objects take a tenth of the time in which files are parsed, and graphs compiled.
gc.set_threshold(50_000)

settings.register_profile("untimed", deadline=None)  # no test asserts a time
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the libraries of a GPU that does not compute, once for all workers."""
    root = tmp_path_factory.getbasetemp()
    return build_fake_cuda((root.parent if root.name.startswith("popen-") else root) / "fake_cuda")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark quick tests before ``-m`` selects, and put the longer ones first."""
    for item in items:
        if place(item.path) == len(LONGER) and not {mark.name for mark in item.iter_markers()} & NOT_QUICK:
            item.add_marker("quick")
    items.sort(key=lambda item: place(item.path))


@functools.cache
def place(path: Path) -> int:
    """Return the place of a test's file or folder in ``LONGER``, or after its end."""
    file = path.relative_to(TESTS)
    return next((n for n, name in enumerate(LONGER) if name in (file.parts[0], file.as_posix())), len(LONGER))


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of garbage collections, because MindSpore collects at each compilation."""
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave what each file leaves out of the collections of the next ones, too."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
