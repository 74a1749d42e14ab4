"""``import dimred`` sets a cap for oneDNN in a user's script, and leaves no folder and no words at its end."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dimred
from dimred.workarounds.onednn_cap import ISA_VARIABLE, has_avx512
from tests.helpers.commands import run

SCRIPT = """
import dimred
import mindspore as ms
from mindspore import Tensor, nn

class Broken(nn.Cell):
    def construct(self, x):
        return x.nothing_there(1)

ms.set_context(mode=ms.GRAPH_MODE)
networks = [nn.Dense(2, 2) for _ in range(3)]
dimred.TrainStep(nn.WithLossCell(networks[0], nn.MSELoss()), nn.SGD(networks[0].trainable_params()))
try:
    Broken()(Tensor([1.0]))
except AttributeError:
    print("does not compile")
"""


def test_a_script_leaves_no_folder_and_no_traceback(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run(sys.executable, script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "does not compile\n"), done.stderr
    assert "Exception ignored" not in done.stderr
    assert "__del__" not in done.stderr
    assert list(tmp_path.iterdir()) == [script]


def test_on_windows_the_import_says_what_to_do() -> None:
    """Windows has no ``fcntl``, so nothing that needs it may be loaded before."""
    code = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; import dimred"
    done = run(sys.executable, "-c", code, status=1)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: dimred runs on Linux and macOS; on Windows, install WSL (wsl --install) and dimred inside it"
    )


def test_dir_shows_the_public_names_and_no_others() -> None:
    literal = re.search(r"^__all__ = (\[.*?\])", Path(dimred.__file__).read_text(), re.M | re.S)
    assert literal is not None
    assert ast.literal_eval(literal[1]) == dimred.__all__  # type checkers run nothing
    assert [name for name in dir(dimred) if not name.startswith("_")] == sorted(dimred.__all__)
    assert all(callable(getattr(dimred, name)) for name in dimred.__all__)


CODE = f"import os, sys, dimred; print(os.environ.get('{ISA_VARIABLE}'), 'mindspore' in sys.modules)"


def imported(**environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.endswith("MAX_CPU_ISA")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=clean | environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_importing_dimred_sets_the_cap_where_it_is_needed_and_does_not_load_mindspore():
    assert imported() == f"{'AVX2' if has_avx512() else None} False"


@pytest.mark.parametrize("variable", [ISA_VARIABLE, "DNNL_MAX_CPU_ISA"])
def test_a_value_of_the_user_stands(variable):
    kept = "AVX512_CORE" if variable == ISA_VARIABLE else "None"
    assert imported(**{variable: "AVX512_CORE"}) == f"{kept} False"
