"""A stage 1 of two seeds that ``dimred compare`` compares with its rivals, on a task whose epochs take milliseconds."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

import dimred as library
from dimred.config import StageOneConfig
from dimred.runs.device import set_up
from tests.comparison.runs import FEW_SNAPSHOTS, SEARCH, STAGE_ONE, STAGE_TWO, TASK
from tests.helpers.tiny_run import stage_1_run


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two stage 1 runs with different seeds, the second with few snapshots, and files with stage 2."""
    folder = tmp_path_factory.mktemp("compared")
    for seed, changed in ((3, {}), (4, FEW_SNAPSHOTS)):
        set_up(seed, mode="pynative")
        config = StageOneConfig.model_validate(TASK | STAGE_ONE | {"seed": seed} | changed)
        stage_1_run(config)(folder / f"run_{seed}", False)
    for name, config in (("two", STAGE_TWO), ("search", SEARCH)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(TASK | {"stage_2": config}))
    return folder


@pytest.fixture(scope="package")
def compared(folder: Path) -> dict[str, Any]:
    """Compare three methods in a thread, as in a notebook's worker, where no signal can be handled."""
    arguments = ("nowhere", [folder / "run_3"], folder / "two.yaml", folder / "out")
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(library.compare, *arguments, methods=["stage_2", "average", "last"]).result()
