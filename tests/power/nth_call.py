"""Let each call of a command fail that changes something on disk, one after the other, and look at what follows.

python -m tests.power.nth_call CASE FOLDER FAILURE...

runs one of ``tests.power.cases`` in a process that has the library of ``tests.helpers.disks``. A failure is the name of
an error, with + if from then on everything fails: ``EIO ENOSPC EDQUOT EIO+``. It prints a line for each fault of the
command, and at the end how many calls failed.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dimred.io import atomic
from tests.helpers.disks import CALLS, FailingDisk
from tests.helpers.results import differing
from tests.power import cases


def sweep(case: cases.Case, root: Path, failures: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Let every call fail in every way.

    Args:
        case: the command.
        root: a new folder, which the command writes to.
        failures: the ways, such as ``EIO+``.

    Yields:
        Which call failed, and how; and the faults of the command.
    """
    disk = FailingDisk(root)
    root.mkdir()
    disk.fail(CALLS[0], 0, "EIO")  # to count
    assert case.run(root, False).status == 0
    n_calls, expected = {call: disk.n_calls(call) for call in CALLS}, case.results(root)
    for failure in failures:
        error, from_then_on = failure.rstrip("+"), failure.endswith("+")
        for call in CALLS:
            for number in range(1, n_calls[call] + 1):
                shutil.rmtree(root)
                root.mkdir()
                disk.fail(call, number, error, from_then_on=from_then_on)
                outcome = case.run(root, False)
                has_failed = disk.n_calls(call) >= number
                disk.mend()
                if has_failed:
                    removes = call != "unlink" and not from_then_on
                    faults = faults_of(case, outcome, root, expected, removes)
                    yield f"{failure} at {call} {number} of {n_calls[call]}", faults


def faults_of(
    case: cases.Case, outcome: cases.Outcome, root: Path, expected: dict[str, Any], removes: bool
) -> list[str]:
    """Return what is wrong with the end of a failed call, and with the same call afterwards.

    A file that could not be removed may stay until that call.
    """
    faults = []
    errors = [line for line in outcome.error.splitlines() if line.startswith("error: ")]
    if outcome.status == 0:
        names = differing(case.results(root), expected)
        if removes or not names:
            return [f"it succeeds, but differs: {name}" for name in names]
    elif outcome.status not in (2, 3) or len(errors) != 1 or str(root) not in errors[0]:
        faults.append(f"it ends with status {outcome.status} and {outcome.error[-600:]!r}")
    if removes and (left := leftovers(root)):
        faults.append(f"it leaves {left}")
    again = case.run(root, True)
    names = differing(case.results(root), expected)
    is_whole = not names and "exists already" in again.error  # the disk died when all was done
    if again.status and not is_whole:
        faults.append(f"after {outcome}, the same call fails with status {again.status} and {again.error[-600:]!r}")
    faults += [f"after {outcome}, the same call differs: {name}" for name in names]
    faults += [f"after the same call, {name} is left" for name in leftovers(root)]
    return faults


def leftovers(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if atomic.is_temporary(path.name)]


def main() -> None:
    """Sweep one case; the pauses before another attempt are short."""
    name, folder, failures = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    atomic.WAITS_SECONDS, atomic.SECONDS_UNTIL_ROOM = (0.0, 0.0, 0.0), 0.0
    n_calls, n_faults = 0, 0
    for where, faults in sweep(getattr(cases, name)(folder), folder / "disk", failures):
        n_calls, n_faults = n_calls + 1, n_faults + len(faults)
        for fault in faults:
            print(f"fault: {where}: {fault}", flush=True)
    print(json.dumps({"calls": n_calls, "faults": n_faults}))


if __name__ == "__main__":
    main()
