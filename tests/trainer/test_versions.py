"""What a run was made with."""

import json
import platform
from pathlib import Path

import mindspore
import numpy as np

from dimred.trainer.folder import write_versions


def test_the_versions_are_those_in_use(tmp_path: Path) -> None:
    write_versions(tmp_path)
    found = json.loads((tmp_path / "versions.json").read_text())
    assert found["mindspore"] == mindspore.__version__
    assert found["numpy"] == np.__version__
    assert found["python"] == platform.python_version()
