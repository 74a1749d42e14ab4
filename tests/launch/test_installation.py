"""``scripts/install.sh`` adds CUDA's libraries where a driver finds a GPU, once, and keeps them where none does.

pip itself would install 6 GB; a program in its place prints what it is asked to install.
"""

import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY, run
from tests.helpers.fake_cuda import fake_gpu

PYTHON = f"""#!/usr/bin/env bash
case "$*" in
    *"pip install"*) echo "${{@: -1}}" ;;
    *"import dimred"*) ;;
    *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(REPOSITORY / "scripts" / "install.sh", tmp_path / "scripts")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def test_cuda_is_installed_where_a_driver_finds_a_gpu_and_stays_where_none_does(clone: Path, fake_cuda: Path) -> None:
    def install(**variables: str) -> tuple[str, str]:
        done = run("bash", "-c", ". scripts/install.sh; install", cwd=clone, environment=variables, status=0)
        return done.stdout, done.stderr

    gpu = fake_gpu(fake_cuda)
    hidden = gpu | {"CUDA_VISIBLE_DEVICES": ""}
    asked, said = install(**hidden)
    assert asked == f"{clone}[test]\n"
    assert "(about 3 GB; a few minutes; only the first time)" in said
    assert install(**hidden) == ("", "")
    asked, said = install(**gpu)
    assert asked == f"{clone}[test,cuda]\n"
    assert "(about 6 GB, of which 3 GB are CUDA's libraries, because NVIDIA's driver finds a GPU here; " in said
    assert install(**gpu) == ("", "")
    assert install(**hidden) == ("", "")  # as on a login node
