"""Whole runs by the command line, as a user types them: on a device, beside the same on the CPU."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from dimred.checkpoints.checkpoint_io import read_checkpoint

_DIMRED = (sys.executable, "-m", "dimred")
_SHORT = ("--set=epochs=2", "--set=snapshots.first_epoch=1", "--set=snapshots.per_epoch=18")
_QUICK = ("--set=epochs=6", "--set=snapshots.first_epoch=2", "--set=snapshots.per_epoch=7")  # those of README
_SECONDS_TO_BEGIN = 120.0


def quick_start(device: str, folder: Path, *, is_small: bool) -> dict[str, float]:
    """Run README's stage 1, pca and search on digits; return the accuracies that it prints, and the seconds."""
    options, begun = (_SHORT if is_small else _QUICK), time.perf_counter()
    on = ("--device-target", device, "--devices", "1")
    _dimred(folder, "data", "digits", "digits")
    shown = _dimred(folder, "train", "stage-1", "digits", "--config", "digits", *on, *options)
    found = _accuracies("stage 1", shown)
    checkpoints = folder / "device0_stage_1" / "checkpoint_stage_1"
    _dimred(folder, "pca", "--ckpt-dir", str(checkpoints / "checkpoint_pca"))
    (weights,) = checkpoints.glob(f"*-{2 if is_small else 6}_*.ckpt")
    shown = _dimred(folder, "train", "stage-2", "digits", str(weights), "pca_mat.npy", *on)
    return found | _accuracies("search", shown) | {"seconds": time.perf_counter() - begun}


def killed_and_resumed(device: str, folder: Path, *, is_small: bool) -> dict[str, float]:
    """Kill a stage 1 without warning and resume it; return the largest difference to a run without interruption.

    Kernels are deterministic; without that, on an H200, weights of up to 148 differed by up to 2.2 after 148 steps.
    """
    on = ("--device-target", device, "--devices", "1", "--set=save_every_steps=10", "--set=deterministic=true")
    command = ("train", "stage-1", "digits", "--config", "digits", *on, *_SHORT)
    _dimred(folder, "data", "digits", "digits")
    _dimred(folder, *command, "--out", "whole")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([*_DIMRED, *command, "--out", "killed"], cwd=folder, env=environment) as process:
        end = time.perf_counter() + _SECONDS_TO_BEGIN
        while not list(folder.glob("killed/device0_stage_1/resume/*")) and time.perf_counter() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    _dimred(folder, *command, "--out", "killed", "--resume")
    files = [next(folder.glob(f"{run}/device0_stage_1/checkpoint_stage_1/*-2_*.ckpt")) for run in ("whole", "killed")]
    whole, resumed = map(read_checkpoint, files)
    largest = max(float(np.abs(values).max()) for values in whole.values())
    difference = max(float(np.abs(resumed[name].astype("f8") - values).max()) for name, values in whole.items())
    return {"difference": difference, "largest weight": largest, "equal bytes": float(difference == 0)}


def data_path(device: str, folder: Path, *, is_small: bool) -> dict[str, float]:
    """Time ``dimred bench`` of ResNet-50, which reads its batches from JPEG files, at O2; return its row's numbers."""
    small = ("model.name=resnet_small", "data.image_size=16", "data.batch_size=8")
    n_images, options = (64, small) if is_small else (2048, ())
    rng = np.random.default_rng(1)
    for number in range(n_images):
        photo = Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        for split in ("train", "val") if number < 16 else ("train",):
            path = folder / "images" / split / f"class_{number % 8}" / f"{number}.jpeg"
            path.parent.mkdir(parents=True, exist_ok=True)
            photo.save(path, quality=90)
    settings = [f"--set={option}" for option in ("all_reduce_split=[]", *options)]
    on = ("--device-target", device, "--devices", "1")
    shown = _dimred(folder, "bench", "images", "--config", "imagenet", *on, *settings)
    head, _, row = [line for line in shown.splitlines() if line.startswith("|")]
    names, cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in (head, row))
    numbers = ("compile, s", "ms a step", "images a second", "peak memory of rank 0, MB")
    return {name: float(cell.replace(",", "")) for name, cell in zip(names, cells, strict=True) if name in numbers}


def _dimred(folder: Path, *words: str) -> str:
    """Run a command of dimred in a folder, and return what it prints; RuntimeError with its output if it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*_DIMRED, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"dimred {' '.join(words)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _accuracies(stage: str, shown: str) -> dict[str, float]:
    """Read a stage's last line with accuracies, in percent."""
    line = re.findall(r"^accuracy on 'test': .*", shown, re.MULTILINE)[-1]
    as_trained, reestimated = re.findall(r"(\S+) % with BatchNorm", line)
    return {f"{stage}, as trained": float(as_trained), f"{stage}, re-estimated": float(reestimated)}


def empty(folder: Path) -> Path:
    """Make a folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


RUNS = {run.__name__: run for run in (quick_start, killed_and_resumed, data_path)}
"""The runs by name."""
