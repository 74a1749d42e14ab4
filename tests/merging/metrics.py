"""Metrics as users write them, good and bad; each is started in a process of its own."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.helpers.checkpoint_files import as_float, read_file


def distance(candidate, split):
    """Return the distance from a planted optimum, in steps, so not differentiable; each split adds an offset."""
    far = np.linalg.norm(_weights(candidate) - _optimum())
    return np.floor(200 * far) / 200 + {"search": 0, "select": 1, "test": 2}[split]


def _weights(candidate):
    return as_float(read_file(Path(candidate))["w"]).astype(np.float64)


def _optimum():
    return np.load(os.environ["OPTIMUM"])


def number(candidate):
    print("this goes to the log, not into the answer")
    return np.float32(_weights(candidate)[0])


def constant(candidate):
    return 1.0


def samples(tensors):
    return tensors["w"].tolist()


def raises(candidate):
    raise RuntimeError("no such\n\tdata set")  # several lines, as load_state_dict's errors have


def dies(candidate):
    os.kill(os.getpid(), 9)


def hangs(candidate):
    print("begins to hang", flush=True)
    time.sleep(1000)


def hangs_with_the_lock(candidate):
    """Hang without releasing the interpreter's lock, as foreign code can."""
    print("begins to hang", flush=True)
    re.match(r"(a+)+$", "a" * 60 + "b")


def runs_a_program(candidate):
    code = "import os, pathlib, time; pathlib.Path(os.environ['PID_FILE']).write_text(str(os.getpid())); time.sleep(99)"
    subprocess.run([sys.executable, "-c", code], check=True)


def leaves(candidate):
    """Score a candidate from another folder."""
    os.chdir("/")
    return _weights(candidate)[0]


not_a_function = 3
