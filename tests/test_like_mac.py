"""The commands run where macOS's Python would lack a call that Linux has; see ``helpers/like_mac``.

One process runs them all, one after the other, and starts the ranks and the metric. They run in PyNative, because what
a graph computes does not depend on the system, and compiling takes long. How macOS itself behaves can't be seen here.
"""

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers.commands import dimred_here, run
from tests.helpers.like_mac import LIKE_MAC
from tests.helpers.tiny_task import TASK

STAGE_1 = {
    "epochs": 2,
    "schedule": {"peak": 0.1, "total_epochs": 4, "warmup_epochs": 0},
    "snapshots": {"per_epoch": 2},
    "checkpoints": {"every_epochs": 1},
}
SEARCH = {"epochs": 1, "search": {"n_components": 2}}
WEIGHTS = "one/device0_stage_1/checkpoint_stage_1/network-2_4.ckpt"
SNAPSHOTS = "one/device0_stage_1/checkpoint_stage_1/checkpoint_pca"
ONE_RANK = "--devices 1 --device-target CPU"
COMMANDS = {
    "stage 1": f"train stage-1 . --config both.yaml --out one {ONE_RANK}",
    "pca": f"pca --ckpt-dir {SNAPSHOTS} --n-components 2",
    "stage 2": f"train stage-2 . {WEIGHTS} pca_mat.npy --config both.yaml --out two {ONE_RANK}",
    "report": "report two/device0_stage_2 --grid 2",
    "show": "show pca_mat.npy --json",
    "merge": f"merge {SNAPSHOTS} --out mean.safetensors",
    "merge by a metric": f"merge {SNAPSHOTS} --out best.safetensors --metric metric.py:score --minimize",
    "compare": "compare . one/device0_stage_1 --methods last",
    "doctor": "doctor",
}
METRIC = "def score(tensors):\n    return float(sum((values**2).sum() for values in tensors.values()))\n"
# On macOS doctor leaves out the collective, as ranks can't be joined there.
PROGRAM = """
import contextlib, json, sys
from tests.helpers.commands import dimred_here
done = {}
for name, words in json.loads(sys.argv[1]).items():
    if name == "doctor":
        sys.platform = "darwin"
    process = dimred_here(*words.split())
    done[name] = process.returncode, process.stdout, process.stderr
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("like_mac")
    (folder / "both.yaml").write_text(
        yaml.safe_dump(TASK | {"mode": "pynative", "stage_1": STAGE_1, "stage_2": SEARCH})
    )
    (folder / "metric.py").write_text(METRIC)
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, tuple[int, str, str]]:
    environment = LIKE_MAC | {"LIKE_MAC_FLUSHES": str(folder / "flushes")}
    command = (sys.executable, "-c", PROGRAM, json.dumps(COMMANDS))
    done = run(*command, cwd=folder, environment=environment, status=0)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_ends_well(ended: dict[str, tuple[int, str, str]], name: str) -> None:
    status, out, err = ended[name]
    assert status == 0, out + err


def test_the_files_are_those_that_linux_writes(ended: dict[str, tuple[int, str, str]], folder: Path) -> None:
    dimred_here("merge", SNAPSHOTS, "--out", "again.safetensors", cwd=folder, status=0)
    assert (folder / "again.safetensors").read_bytes() == (folder / "mean.safetensors").read_bytes()
    dimred_here(*COMMANDS["pca"].split(), "--out", "again.npy", cwd=folder, status=0)
    assert (folder / "again.npy").read_bytes() == (folder / "pca_mat.npy").read_bytes()
    assert (folder / "again.h5").read_bytes() == (folder / "pca_mat.h5").read_bytes()


def test_every_flush_is_a_full_one(ended: dict[str, tuple[int, str, str]], folder: Path) -> None:
    assert len((folder / "flushes").read_text().splitlines()) > 50
