"""Which tests are quick: ``-m quick`` takes them, and ends in under two minutes on two idle cores."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NOT_QUICK = {"slow", "benchmark", "browser"}  # markers
# Folders and files that start no training run, but for those that take many seconds.
QUICK = (
    "build", "cli", "config", "data", "evaluate", "files", "launch", "merging", "models", "report", "run", "search",
    "subspace", "vectors", "weights", "test_console.py", "test_errors.py", "test_installed.py", "test_onednn.py",
    "test_packages.py",
)  # fmt: skip
LONGER = (
    "cli/test_summary.py", "data/test_digits.py", "data/test_photos.py", "run/test_every_write_event.py",
    "search/test_against_twin.py", "search/test_dropout.py", "search/test_safety.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before ``-m`` chooses."""
    for item in items:
        file, marks = item.path.relative_to(TESTS), {mark.name for mark in item.iter_markers()}
        if file.parts[0] in QUICK and file.as_posix() not in LONGER and not marks & NOT_QUICK:
            item.add_marker("quick")
