"""After a power failure, the same command ends with the bytes of an undisturbed one, or says what is gone.

By default the states of ``dimred pca`` and ``merge``; with ``-m slow`` those of the other commands and of both stages.
"""

import random
import re
import secrets
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from dimred.io.atomic import is_temporary
from tests.helpers.results import differing
from tests.power import cases
from tests.power.recording import WAYS, Moment, Recording, Tree, keep_all, lose_all, write_tree

# What is rewritten after a power failure, or means nothing any more.
_NEED_NOT_BE_SAFE = re.compile(r".*(/\.lock|\.log|metrics\.jsonl|/candidate-.*|\.writing-.*)")


def record(root: Path, run: Callable[[], cases.Outcome]) -> Recording:
    """Record a command that runs to its end."""
    recording = Recording(root)
    with recording.recorded():
        outcome = run()
    assert outcome.status == 0, outcome
    return recording


@pytest.mark.parametrize(
    "name",
    ["pca", "merge"]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("search", "cooldown", "merge_by_metric", "report", "convert", "stage_1")
    ],
)
def test_the_same_command_ends_with_the_same_bytes_after_a_power_failure(name: str, tmp_path: Path) -> None:
    """The power fails while the command runs; or a second time, while it goes on after the first."""
    root = tmp_path / "disk"
    root.mkdir()
    case = getattr(cases, name)(tmp_path)
    recording = record(root, lambda: case.run(root, False))
    expected = case.results(root)
    faults, n_events, n_states, n_refused = [], 0, 0, 0
    for failure in ("first", "second"):
        went_on = []
        for where, tree in [*recording.states()]:
            outcome = go_on(case, tree, root)
            names = [] if outcome.status else differing(case.results(root), expected)
            names = [one for one in names if not is_temporary(Path(one).name)]  # where others may write, it stays
            is_whole = "exists already" in outcome.error and {*expected.items()} <= {*case.results(root).items()}
            if names or (outcome.status and not is_whole):
                faults.append(f"{failure} failure, {where}: {outcome}, {names} of {[*tree]}")
            n_states, n_refused = n_states + 1, n_refused + (outcome.status != 0)
            went_on += [] if outcome.status else [tree]
        n_events += len(recording.moments) * len(WAYS)
        restore(went_on[len(went_on) // 2], root)
        recording = record(root, lambda: restart(case, root))
    print(f"{name}: {n_events} moments and ways to lose, {n_states} different states, {n_refused} refused")
    assert not faults, "\n".join(faults)


def go_on(case: cases.Case, tree: Tree, root: Path) -> cases.Outcome:
    """Go on from a state, after the machine was started again."""
    restore(tree, root)
    return restart(case, root)


def restore(tree: Tree, root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()
    write_tree(tree, root)


def restart(case: cases.Case, root: Path) -> cases.Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dimred.io.atomic.BOOT", secrets.token_hex(8))
        return case.run(root, True)


@pytest.mark.parametrize(
    "name",
    ["pca", "merge"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("merge_by_metric", "report", "stage_1", "search")],
)
def test_a_file_is_safe_as_soon_as_it_has_its_name(name: str, tmp_path: Path) -> None:
    """Between its renaming and the flush of its folder there is one moment; at the end everything is safe."""
    root = tmp_path / "disk"
    root.mkdir()
    case = getattr(cases, name)(tmp_path)
    recording = record(root, lambda: case.run(root, False))
    unsafe = [*map(unsafe_files, recording.moments)]
    assert unsafe[-1] == set()
    assert [one & other for one, other in pairwise(unsafe) if one & other] == []


def unsafe_files(moment: Moment) -> set[str]:
    """Return the files that a power failure at this moment may take or change."""
    certain, visible = (make(moment, random.Random()) for make in (lose_all, keep_all))
    lost = {path for path, content in visible.items() if path not in certain or certain[path] != content}
    return {path for path in lost if not _NEED_NOT_BE_SAFE.fullmatch(f"/{path}")}
