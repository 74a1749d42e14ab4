"""A program for ranks, without MindSpore: python -m tests.launch.rank_programs HOW ... --out FOLDER.

It notes its process in FOLDER/../pids, and then ends as HOW says:

- ``fine``: at once, with status 0
- ``fail RANK STATUS WORDS``: this rank fails with the status and the words; the others wait
- ``refuse RANKS``: these refuse to begin, the later ones at once, rank 0 after half a second; the others wait
- ``follow``: rank 1 refuses because rank 0 has a fault, and rank 0 ends with status 3 a second later
- ``together``: rank 1 ends with status 3, and rank 0 a moment later
- ``begin and refuse``: it refuses in the first step, when it is too late
- ``wait``: never
- ``save STATUS``: on a stop signal it says so, takes a second to save, and ends with that status
- ``measure SECONDS``: in its first step it reads batches for so long
- ``inherit``: it shows which of the launcher's descriptors and variables reach a program that it starts
- ``log SECONDS``: in its first step it waits for so long, and says so
- ``stall RANK STEPS``: this rank never gets the batch after so many steps, and the others wait for it in that step
"""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dimred.io.stop_signals import stop_signals
from dimred.launch.channel import COMPUTING, READING, tell_alive, tell_position, tell_refusal

_INHERITED = """
import os
named = [os.readlink(f"/proc/self/fd/{number}") for number in range(100) if os.path.exists(f"/proc/self/fd/{number}")]
print("sockets:", [name for name in named if name.startswith("socket:")], "DIMRED_LAUNCHER" in os.environ)
"""


def main(how: str, *rest: str) -> None:
    rank, folder = os.environ["RANK_ID"], Path(sys.argv[-1])
    print(f"rank {rank} of {os.environ['RANK_SIZE']} ö {how}", flush=True)
    if how == "refuse" and rank in rest[0]:
        time.sleep(0 if rank != "0" else 0.5)
        refuse(f"DATA is not what rank {rank} wants")
    if how == "follow":
        if rank == "1":
            refuse("rank 0 could not go on")
        time.sleep(1)
        print("error: the disk is full", flush=True)
        sys.exit(3)
    if how == "together":
        if rank == "0":
            while "error" not in (folder.parent / "device1_stage_1" / "train.log").read_text():
                time.sleep(0.05)
            time.sleep(0.5)
        print(f"error: the words of rank {rank}", flush=True)
        sys.exit(3)
    if how == "begin and refuse":
        tell_position(COMPUTING, 1)
        refuse("too late")
    if how == "save":
        for number in stop_signals():
            signal.signal(number, lambda *_: save(folder, int(rest[0])))
    if how != "refuse":
        note_process(folder.parent / "pids", rank)
    if how == "fail" and rank == rest[0]:
        print(f"error: {rest[2]}", flush=True)
        sys.exit(int(rest[1]))
    if how in ("measure", "log"):
        tell_position(COMPUTING, 1)
        for _ in range(int(20 * float(rest[0]))):
            tell_alive() if how == "measure" else logging.getLogger("dimred.io").warning("the disk is full")
            time.sleep(0.05)
    if how == "stall":
        stall_after(int(rest[1]), reading=rank == rest[0])
    if how == "inherit":
        subprocess.run([sys.executable, "-c", _INHERITED], close_fds=False, check=True)
    while how not in ("fine", "measure", "log", "inherit"):
        time.sleep(0.05)


def refuse(why: str) -> None:
    """Refuse as ``run_program`` does."""
    if not tell_refusal(why):
        print(f"error: {why}", file=sys.stderr)
    sys.exit(2)


def save(folder: Path, status: int) -> None:
    print("saving", flush=True)
    time.sleep(1)
    (folder / "saved").touch()
    sys.exit(status)


def note_process(pids: Path, rank: str) -> None:
    pids.mkdir(exist_ok=True)
    unfinished = pids / f".{rank}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(pids / rank)


def stall_after(steps: int, reading: bool) -> None:
    """Take so many steps, and halt in the next one: while its batch is read, or after that."""
    for step in range(11, 11 + steps + (not reading)):
        tell_position(READING, step)
        tell_position(COMPUTING, step)
    if reading:
        tell_position(READING, 11 + steps)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
