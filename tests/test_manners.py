"""What MindSpore leaves in a user's own script: nothing in the working directory, nothing after the last line."""

import sys
from pathlib import Path

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
