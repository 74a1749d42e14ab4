"""Mark the quick tests: ``-m quick`` takes them, and ends in 90 seconds on two idle cores."""

import gc
import signal
from pathlib import Path

import mindspore as ms
import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
NOT_QUICK = {"slow", "benchmark", "browser", "torch"}  # markers
# Folders whose tests start training runs or jobs or compile much, and other files that take ten seconds of CPU time.
LONGER_FOLDERS = ("benchmarks", "distributed", "fuzz", "pipelines", "power", "train_step")
LONGER = (
    "cli/test_bench.py",
    "cli/test_doctor.py",
    "comparison/test_compare.py",
    "golden/test_golden.py",
    "launch/test_launcher.py",
    "merging/test_average.py",
    "merging/test_merge.py",
    "merging/test_merge_goes_on.py",
    "merging/test_user_metric.py",
    "runs/test_device.py",
    "stages/test_early_stop.py",
    "stages/test_every_write_event.py",
    "stages/test_stage_2.py",
    "stages/test_reads.py",
    "stages/test_stage_1.py",
    "search_step/test_against_twin.py",
    "search_step/test_safety.py",
    "search_step/test_use.py",
    "vectors/test_vectors.py",
)

# A process in a script's background or under nohup ignores these signals, and so do its children; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Threads that hand operators to each other in PyNative cost two busy workers several times what the operators do.
ms.runtime.launch_blocking()

settings.register_profile("untimed", deadline=None)  # no test asserts a time
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark quick tests before ``-m`` selects."""
    for item in items:
        file, marks = item.path.relative_to(TESTS), {mark.name for mark in item.iter_markers()}
        is_longer = file.parts[0] in LONGER_FOLDERS or file.as_posix() in LONGER
        if not is_longer and not marks & NOT_QUICK:
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of garbage collections, because MindSpore collects at each compilation."""
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave what each file leaves out of the collections of the next ones, too."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
