"""The tables of the study after AdamW say what its store holds."""

from pathlib import Path

import numpy as np
import pytest

from tests.studies import after_adamw
from tests.studies.after_adamw import AVERAGE, MEANS, SEARCH

NAMES = (
    "last weights",
    "cooldown",
    SEARCH,
    "search, 3 directions",
    "search, 32 random directions",
    "search, 32 directions of the means",
    "points, newest 3",
    "points, newest 35",
    "means, newest 3",
    "means, newest 35",
    "cosine",
)
VAL = (0.9, 0.5, 0.6, 0.6, 0.7, 0.6, 0.8, 0.7, 0.6, 0.65, 0.4)


def _write(path: Path, right: list[int] | None = None, losses: list[float] | None = None) -> None:
    """Write a run whose networks are right on so many of ten samples of ``test``, or have these losses."""
    arrays = {"names": np.array(NAMES), "passes": np.full(len(NAMES), 45.0), "val_losses": np.array(VAL)[:, None]}
    if losses is not None:
        arrays["test_losses"] = np.array(losses)[:, None] * np.ones(4)
    else:
        correct = np.arange(10) < np.array(right)[:, None]
        arrays |= {"test_correct": np.packbits(correct, 1), "n_test": np.array(10)}
    for name in NAMES:
        if name.startswith("search"):
            arrays[f"{name}: search"] = np.array([5.0, 60, 50, 3.0, 0.25, 0.5])
            arrays[f"{name}: explained"] = np.zeros(0) if "random" in name else np.full(32, 1 / 32)
    np.savez(path, **arrays)


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, list[after_adamw.Run]]:
    for seed, right in enumerate(([1, 5, 6, 6, 3, 6, 9, 2, 9, 8, 7], [0, 4, 6, 5, 3, 6, 9, 3, 9, 8, 8])):
        _write(tmp_path / f"photos_{seed + 1}.npz", right)
    _write(tmp_path / "photos_3.npz", [1, 5, 6, 6, 4, 6, 9, 2, 9, 8, 7])
    _write(tmp_path / "photos_6.npz", [0] * 11)
    for seed in (2, 3, 4):
        _write(tmp_path / f"source_{seed}.npz", losses=[1.5, 1.31, 1.3, 1.3, 1.4, 1.31, 1.0, 1.4, 1.0, 1.2, 1.3])
    return after_adamw.of_tasks(after_adamw.load(tmp_path))


def test_rows_have_the_average_that_val_chooses_and_no_seed_that_chose_rates(
    tasks: dict[str, list[after_adamw.Run]],
) -> None:
    lines = after_adamw.score_table(tasks).splitlines()
    assert lines[0] == "| | passes | photographs, seeds 1, 2, 3 | source code, seeds 2, 3, 4 |"
    assert f"| {AVERAGE} | 45.0 | 23.33 ± 5.77 | -140.00 ± 0.00 |" in lines
    assert "| best average of means | 45.0 | 90.00 ± 0.00 | -100.00 ± 0.00 |" in lines
    [row] = [line for line in after_adamw.run_table(tasks).splitlines() if line.startswith("| photographs, seed 2")]
    assert row.endswith("| 30.00 | 80.00 | 60.00 | 90.00 | points, newest 35, means, newest 3 |")


def test_what_counts_is_decided_by_the_pairs(tasks: dict[str, list[after_adamw.Run]]) -> None:
    pairs = [(SEARCH, rival) for rival in ("cooldown", "search, 3 directions", "cosine")]
    cooldown, few, cosine = after_adamw.difference_table(tasks, pairs).splitlines()[2:]
    assert cooldown.endswith("less cooldown | +13.33 ± 3.33 | +1.00 ± 0.00 | ahead: photographs, source code |")
    assert few.endswith("less search, 3 directions | +3.33 ± 3.33 | +0.00 ± 0.00 | nothing |")
    assert cosine.endswith("less cosine | -13.33 ± 3.33 | +0.00 ± 0.00 | behind: photographs |")
    of_means = after_adamw.difference_table(tasks, MEANS).splitlines()[2]
    assert of_means.startswith("| best average of means less best average | +66.67 ")


def test_a_search_says_how_far_it_went(tasks: dict[str, list[after_adamw.Run]]) -> None:
    lines = after_adamw.search_table(tasks).splitlines()
    assert f"| photographs | {SEARCH} | 60 | 50 | 3 | 0.25 | 50 | 3.1, 9.4, 100.0 |" in lines
    assert "| source code | search, 32 random directions | 60 | 50 | 3 | 0.25 | 50 |  |" in lines
