"""Launch jobs of ranks that run ``rank_programs``, here or in a process of their own.

python -m tests.launch.jobs PROGRAM DEVICES NODES NODE PORT OUT WORDS; with PORT 0 a single node looks up a free one.
"""

import subprocess
import sys
import time
from pathlib import Path

from dimred.errors import DimredError
from dimred.launch.job import Job, make_job
from dimred.launch.launcher import launch


def job(out: Path, *words: str, program: str = "tests.launch.rank_programs", devices: int = 1, **options) -> Job:
    options = {"device_target": "CPU"} | options
    return make_job(program, "stage_1", list(words), out=out, devices=devices, **options)


def launch_command(
    program: str, out: Path, *words: str, devices: int, nodes: int = 1, node: int = 0, port: int = 0
) -> list[str]:
    """Return the command of a launcher in a process of its own."""
    numbers = map(str, (devices, nodes, node, port))
    return [sys.executable, "-m", "tests.launch.jobs", program, *numbers, str(out), *words]


def main(program: str, devices: str, nodes: str, node: str, port: str, out: str, *words: str) -> int:
    place = {"nodes": int(nodes), "node_rank": int(node), "master_addr": "127.0.0.1", "master_port": int(port)}
    try:
        return launch(job(Path(out), *words, program=program, devices=int(devices), **place))
    except DimredError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


class Launcher:
    """A launcher in its own process."""

    def __init__(self, out: Path, *words: str, devices: int):
        self.out = out
        self.process = subprocess.Popen(
            launch_command("tests.launch.rank_programs", out, *words, devices=devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pids(self, n_ranks: int) -> dict[str, int]:
        """Return the processes of the ranks once all have started."""
        for _ in range(2400):
            found = sorted((self.out / "pids").glob("[0-9]*"))
            if len(found) == n_ranks:
                return {path.name: int(path.read_text()) for path in found}
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(self.process.communicate())

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
