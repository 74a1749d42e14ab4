"""Planted problems, for every test of a search."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.commands import REPOSITORY
from tests.merging.problems import plant


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of checkpoints; their optimum is known to the metric ``distance``."""
    np.save(tmp_path / "optimum.npy", plant(tmp_path / "run"))
    monkeypatch.setenv("OPTIMUM", str(tmp_path / "optimum.npy"))
    return tmp_path
