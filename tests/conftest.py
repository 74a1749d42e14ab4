"""Which tests are quick: ``-m quick`` takes them, and ends in under two minutes on two idle cores."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NOT_QUICK = {"slow", "benchmark", "browser"}
# Files and folders that start no training run and no job.
QUICK = (
    "build", "cli", "config", "data", "evaluate", "files", "launch", "merging", "models", "report", "run", "search",
    "subspace", "vectors", "weights", "test_console.py", "test_errors.py", "test_installed.py", "test_onednn.py",
    "test_packages.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before ``-m`` chooses."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if item.path.relative_to(TESTS).parts[0] in QUICK and not marks & NOT_QUICK:
            item.add_marker("quick")
