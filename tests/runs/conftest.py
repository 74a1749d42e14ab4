from pathlib import Path

import numpy as np
import pytest

from dimred.data.digits import write_image_tree
from tests.helpers.modes import _graph_mode  # noqa: F401


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pixels = np.zeros((16, 20, 3))
    write_image_tree(tmp_path / "data", [("train", name, "one", pixels) for name in ("cat", "dog")])
    return tmp_path / "data"
