"""The mutants of a kernel: each operator and each bound is changed, and nothing that is only read."""

import sys
from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY, run
from tests.mutants import KERNELS, mutants

SOURCE = '''
def kernel(values: "tuple[int, 3]", n: int = 7, *, scale=2) -> "list[1 + 1]":
    """Return 1 + 1."""
    _log.info(f"{n + 1}", n - 1)
    if not values[0] < n <= 2 and n is not None:
        raise ValueError("a" + "b")
    total = -values[1:n].max()
    total += min(n, 5) % scale**9
    return total // 4 or values[:, ::-1]
'''


def test_each_operator_and_each_bound_is_changed_and_no_text() -> None:
    found = [(mutant.line, mutant.change) for mutant in mutants("kernel.py", SOURCE)]
    condition = "not values[0] < n <= 2 and n is not None"
    assert sorted(found) == sorted(
        [
            (5, f"{condition} -> not values[0] < n <= 2 or n is not None"),
            (5, "not values[0] < n <= 2 -> not not values[0] < n <= 2"),
            (5, "values[0] < n <= 2 -> values[0] <= n <= 2"),
            (5, "values[0] < n <= 2 -> values[0] < n < 2"),
            (5, "values[0] < n <= 2 -> values[0] < n <= 3"),
            (5, "values[0] < n <= 2 -> values[0] < n <= 1"),
            (5, "values[0] -> values[1]"),
            (5, "values[0] -> values[-1]"),
            (5, "n is not None -> n is None"),
            (7, "-values[1:n].max() -> +values[1:n].max()"),
            (7, "values[1:n].max() -> values[1:n].min()"),
            (7, "values[1:n] -> values[2:n]"),
            (7, "values[1:n] -> values[0:n]"),
            (7, "values[1:n] -> values[1:n - 1]"),
            (8, "total += min(n, 5) % scale ** 9 -> total -= min(n, 5) % scale ** 9"),
            (8, "min(n, 5) % scale ** 9 -> min(n, 5) // scale ** 9"),
            (8, "min(n, 5) -> max(n, 5)"),
            (8, "min(n, 5) -> min(n, 6)"),
            (8, "min(n, 5) -> min(n, 4)"),
            (8, "scale ** 9 -> scale * 9"),
            (9, "total // 4 or values[:, ::-1] -> total // 4 and values[:, ::-1]"),
            (9, "total // 4 -> total / 4"),
            (9, "values[:, ::-1] -> values[1:, ::-1]"),
            (9, "values[:, ::-1] -> values[:-1, ::-1]"),
            (9, "values[:, ::-1] -> values[:, 1::-1]"),
            (9, "values[:, ::-1] -> values[:, :-1:-1]"),
            (9, "values[:, ::-1] -> values[:, ::+1]"),
            (9, "values[:, ::-1] -> values[:, ::-2]"),
            (9, "values[:, ::-1] -> values[:, ::-0]"),
        ]
    )


def test_each_mutant_is_a_module_of_its_own() -> None:
    found = mutants("kernel.py", SOURCE)
    assert len({mutant.digest for mutant in found}) == len(found)
    for mutant in found:
        compile(mutant.source, mutant.kernel, "exec")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_and_its_tests_are_there(kernel: str) -> None:
    assert (REPOSITORY / "dimred" / kernel).is_file()
    for place in KERNELS[kernel]:
        file, _, function = place.partition("::")
        assert f"def {function}" in (REPOSITORY / file).read_text()


@pytest.mark.slow
def test_the_curves_mutants_are_killed_and_none_is_tried_twice(tmp_path: Path) -> None:
    """Their tests pass on the copy without a change, or the program ends with an error."""
    command = (sys.executable, "-m", "tests.mutants", "curves.py", "--store", tmp_path / "outcomes.jsonl")
    first, second = (run(*command, cwd=REPOSITORY, status=0).stdout for _ in range(2))
    assert first.count(": killed tests/test_curves.py::") == 5
    assert "| all | 5 | 5 | 0 | 0 |" in first
    assert second == first[first.index("\n| kernel") :]
