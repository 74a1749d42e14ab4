"""Both stages in the mode that the configuration names, and no name that is deprecated."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers.commands import REPOSITORY, run
from tests.helpers.tiny_task import TASK

PROGRAM = """
import warnings
warnings.simplefilter("error", DeprecationWarning)
import importlib, json, pkgutil
from pathlib import Path
import dimred
for module in pkgutil.walk_packages(dimred.__path__, "dimred."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import mindspore as ms
from dimred.pipelines.stage_1 import stage_1
from dimred.pipelines.stage_2 import stage_2
found = {}
for mode in ("pynative", "graph"):
    out = Path(mode)
    stage_1(Path(), config_file=Path("one.yaml"), out=out, overrides=[f"mode={mode}"])
    modes = [ms.get_context("mode")]
    (weights,) = out.glob("checkpoint_stage_1/*-3_4.ckpt")
    ms.set_context(mode=ms.GRAPH_MODE if mode == "pynative" else ms.PYNATIVE_MODE)
    stage_2(Path(), weights, out=Path(f"{mode}_2"), overrides=["search.n_components=4"])
    found[mode] = [*modes, ms.get_context("mode")]
print(json.dumps(found | {"expected": [ms.PYNATIVE_MODE, ms.GRAPH_MODE]}))
warnings.simplefilter("ignore")
"""


@pytest.mark.slow
def test_both_stages_run_in_the_mode_of_the_key_and_call_nothing_deprecated(tmp_path: Path) -> None:
    """Stage 2 takes the mode from stage 1's configuration. With GLOG_v=2 MindSpore logs what it deprecates.

    At its own exit it calls a deprecated name of Python, so the program then ignores these warnings.
    """
    stage_1 = {"epochs": 3, "schedule": {"warmup_epochs": 1}, "snapshots": {"first_epoch": 1, "per_epoch": 2}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(TASK | {"stage_1": stage_1}))
    variables = {"GLOG_v": "2", "PYTHONPATH": str(REPOSITORY)}
    done = run(sys.executable, "-c", PROGRAM, cwd=tmp_path, environment=variables, status=0)
    modes = json.loads(done.stdout.splitlines()[-1])
    pynative, graph = modes["expected"]
    assert modes["pynative"] == [pynative] * 2
    assert modes["graph"] == [graph] * 2
    assert "[WARNING] ME" not in done.stderr
    assert "deprecat" not in (done.stdout + done.stderr).lower()
