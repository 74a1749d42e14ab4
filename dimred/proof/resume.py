"""A run that is killed and resumed must leave the same bytes as an uninterrupted one."""

import signal
import subprocess
import sys
from pathlib import Path

from dimred.errors import FaultError
from dimred.io.regular_file import read_regular
from dimred.launch.device import Target
from dimred.proof.difference import Difference
from dimred.run_files.run_names import STAGE_1_CHECKPOINTS

_CONFIG = """
seed: 3
model: {name: "dimred.proof.task:network", n_classes: 3}
data: {dataset: "dimred.proof.task:Points", batch_size: 6, workers: 1}
reestimate_batches: 1
stage_1:
  epochs: 4
  schedule: {warmup_epochs: 1}
  checkpoints: {every_epochs: 1}
  snapshots: {first_epoch: 1, per_epoch: 2}
"""


def killed_and_resumed(folder: Path, device_target: Target) -> list[Difference]:
    """Run stage 1 once whole and once killed in its second epoch and resumed; count the checkpoints that differ.

    Args:
        folder: an empty folder.
        device_target: the kind of device to compute on.

    Raises:
        FaultError: a run did not end as it should.
    """
    (folder / "proof.yaml").write_text(_CONFIG)

    def train(out: str, *options: str, status: int = 0) -> None:
        command = [sys.executable, "-P", "-m", "dimred.pipelines.stage_1", str(folder), *options]
        command += ["--config", str(folder / "proof.yaml"), "--device-target", device_target, "--out", out]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != status:
            raise FaultError(
                f"stage 1 ended with status {done.returncode} in place of {status}: "
                f"{(done.stdout + done.stderr)[-2000:].strip()}"
            )

    train("whole")
    train("killed", "--set=callback=dimred.proof.task:killing", status=-signal.SIGKILL)
    train("killed", "--resume", "--set=callback=null")
    whole, resumed = (_files(folder / out / STAGE_1_CHECKPOINTS) for out in ("whole", "killed"))
    differing = [name for name in whole.keys() | resumed.keys() if whole.get(name) != resumed.get(name)]
    return [
        Difference("checkpoints that are missing", float(not whole), 0.0),
        Difference("checkpoints whose bytes differ", float(len(differing)), 0.0),
    ]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): read_regular(path) for path in folder.rglob("*.ckpt")}
