"""What native code prints on a terminal goes to the file; what Python prints stays."""

import os
import pty
import subprocess
import sys
from pathlib import Path

CODE = """
import os, sys
from pathlib import Path
from dimred.trainer.device import redirect_native_stderr
with redirect_native_stderr(Path("noise.log")):
    os.write(2, b"native\\n")
    print("python", file=sys.stderr)
os.write(2, b"afterwards\\n")
print("still python", file=sys.stderr)
"""


def test_in_a_terminal_native_output_goes_to_the_file(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, stderr=end, check=True, timeout=60)
    os.close(end)
    assert os.read(terminal, 1000) == b"python\r\nafterwards\r\nstill python\r\n"
    os.close(terminal)
    assert (tmp_path / "noise.log").read_bytes() == b"native\n"


def test_outside_a_terminal_nothing_is_redirected(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, check=True, timeout=60)
    assert done.stderr == b"native\npython\nafterwards\nstill python\n"
    assert not (tmp_path / "noise.log").exists()
