"""A launcher in a process of its own: python -m tests.launch.launch_program PROGRAM DEVICES NODES NODE PORT OUT WORDS.

PORT is 0 where one node looks up a free one.
"""

import sys
from pathlib import Path

from dimred.errors import DimredError
from dimred.launch.job import make_job
from dimred.launch.launcher import launch


def main(program: str, devices: str, nodes: str, node: str, port: str, out: str, *words: str) -> int:
    job = make_job(
        program, "stage_1", list(words), out=Path(out), devices=int(devices), device_target="CPU",
        nodes=int(nodes), node_rank=int(node), master_addr="127.0.0.1", master_port=int(port),
    )  # fmt: skip
    try:
        return launch(job)
    except DimredError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
