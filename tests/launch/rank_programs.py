"""A program for ranks, without MindSpore: python -m tests.launch.rank_programs HOW ... --out FOLDER.

It notes its process in FOLDER/../pids, and then ends as the words say: ``fine``, ``fail RANK STATUS``, ``wait``,
``save`` (waits, and ends with status 75 on SIGTERM), or ``stall RANK`` (that one never gets its third batch, and the
others wait for it in their third step).
"""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

from dimred.launch.heartbeat import Heartbeat


def main(how: str, *rest: str) -> None:
    rank, folder = os.environ["RANK_ID"], Path(sys.argv[-1])
    print(f"rank {rank} of {os.environ['RANK_SIZE']} ö {how}", flush=True)
    if how == "save":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    pids = folder.parent / "pids"
    pids.mkdir(exist_ok=True)
    unfinished = pids / f".{rank}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(pids / rank)
    if how == "fail" and rank == rest[0]:
        print("error: something is wrong here", flush=True)
        sys.exit(int(rest[1]))
    if how == "stall":
        batches = iter([1, 2]) if rank == rest[0] else iter([1, 2, 3])
        endless = itertools.chain(batches, map(time.sleep, itertools.repeat(60)))
        for number, _ in enumerate(Heartbeat().around(endless, 10), start=1):
            while number == 3:
                time.sleep(60)
    while how != "fine":
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
