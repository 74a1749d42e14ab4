"""Planted problems for the tests of a search."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.commands import REPOSITORY
from tests.merging.problems import plant


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write checkpoints whose optimum the metric ``distance`` knows, and return the folder above them."""
    np.save(tmp_path / "optimum.npy", plant(tmp_path / "run"))
    monkeypatch.setenv("OPTIMUM", str(tmp_path / "optimum.npy"))
    return tmp_path
