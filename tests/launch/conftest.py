"""Programs of these tests run as ranks, which find modules only where they are installed or PYTHONPATH says."""

import pytest

from tests.helpers.commands import REPOSITORY


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
