"""After a power failure, the same command ends with the bytes of an undisturbed one, or says what is gone.

By default some of the states of ``dimred pca`` and ``merge``; with ``-m slow`` all of them, and those of both stages.
"""

import random
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from dimred.io.atomic import is_temporary
from tests.helpers.results import differing
from tests.power import cases
from tests.power.recording import Moment, Recording, Tree, keep_all, lose_all, write_tree

# What is rewritten after a power failure, or means nothing any more.
_NEED_NOT_BE_SAFE = re.compile(r".*(/\.lock|\.log|metrics\.jsonl|/candidate-.*|\.writing-.*)")


def record(case: cases.Case, root: Path) -> Recording:
    """Run a command to its end in a new folder."""
    root.mkdir()
    recording = Recording(root)
    with recording.recorded():
        outcome = case.run(root, False)
    assert outcome.status == 0, outcome
    return recording


@pytest.mark.parametrize(
    ("name", "every"),
    [("pca", 1), ("merge", 2)]
    + [
        pytest.param(name, 1, marks=pytest.mark.slow)
        for name in ("merge", "merge_by_metric", "report", "convert", "stage_1", "search", "cooldown")
    ],
)
def test_the_same_command_ends_with_the_same_bytes_after_a_power_failure(name: str, every: int, tmp_path: Path) -> None:
    root = tmp_path / "disk"
    case = getattr(cases, name)(tmp_path)
    recording = record(case, root)
    expected = case.results(root)
    states = [*recording.states()][::every]
    faults, n_refused = [], 0
    for where, tree in states:
        outcome = go_on(case, tree, root)
        names = [] if outcome.status else differing(case.results(root), expected)
        names = [name for name in names if not is_temporary(name)]  # beside a result, where others may write, it stays
        n_refused += outcome.status != 0
        is_whole = "exists already" in outcome.error and {*expected.items()} <= {*case.results(root).items()}
        if names or (outcome.status and not is_whole):
            faults.append(f"{where}: {outcome}, {names} of {[*tree]}")
    print(f"{name}: {len(recording.moments)} moments, {len(states)} states, {n_refused} refusals")
    assert not faults, "\n".join(faults)


def go_on(case: cases.Case, tree: Tree, root: Path) -> cases.Outcome:
    """Go on from a state, after the machine was started again."""
    shutil.rmtree(root)
    root.mkdir()
    write_tree(tree, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dimred.io.atomic.BOOT", "0" * 16)
        return case.run(root, True)


@pytest.mark.parametrize(
    "name",
    ["pca", "merge"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("merge_by_metric", "report", "stage_1", "search")],
)
def test_a_file_is_safe_as_soon_as_it_has_its_name(name: str, tmp_path: Path) -> None:
    """Between its renaming and the flush of its folder there is one moment; at the end everything is safe."""
    recording = record(getattr(cases, name)(tmp_path), tmp_path / "disk")
    unsafe = [*map(unsafe_files, recording.moments)]
    assert unsafe[-1] == set()
    assert [one & other for one, other in pairwise(unsafe) if one & other] == []


def unsafe_files(moment: Moment) -> set[str]:
    """Return the files that a power failure at this moment may take or change."""
    certain, visible = (make(moment, random.Random()) for make in (lose_all, keep_all))
    lost = {path for path, content in visible.items() if path not in certain or certain[path] != content}
    return {path for path in lost if not _NEED_NOT_BE_SAFE.fullmatch(f"/{path}")}
