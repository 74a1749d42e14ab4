"""``SubspaceBasis.save``, killed at any moment, disturbs no later run in the same folder."""

import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np

from dimred.files.atomic import remove_leftovers
from dimred.run.folder import run_folder
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.planted import random_walk, write_series

PROGRAM = Path(__file__).with_name("save_and_die.py")


def test_a_killed_save_leaves_nothing_that_disturbs_a_later_run(tmp_path):
    snapshots = random_walk(6, 500)
    made = fit_basis(write_series(tmp_path / "s", snapshots), 3, out=tmp_path / "made.npy")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    out = tmp_path / "run" / "pca_mat.npy"
    for number in count(1):
        done = subprocess.run([sys.executable, PROGRAM, made.path, out, str(number)], check=False)
        with run_folder(tmp_path / "run", resume=True):
            pass
        remove_leftovers(tmp_path / "run")
        left = {path.name for path in out.parent.iterdir()} - {".lock", "config.yaml"}
        assert left <= {"pca_mat.npy", "pca_mat.h5"}
        if done.returncode == 0:
            break
        assert done.returncode == 9
    assert number > 4, "the program did not die in between"
    assert np.array_equal(load_basis(out).components, made.components)
