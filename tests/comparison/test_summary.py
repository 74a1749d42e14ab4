"""The comparison summed up: mean, spread, and who is bold."""

from pathlib import Path

import pytest

from dimred.comparison.summary import TITLES, collect, curves, markdown
from dimred.errors import ConfigError
from tests.helpers.run_files import write_compared


def test_the_table_has_the_methods_in_order_and_the_best_on_test_is_bold(tmp_path: Path) -> None:
    write_compared(tmp_path, 1, "plain_to_the_end", 0.91, passes=90)
    write_compared(tmp_path, 1, "last", 0.80, passes=70)
    write_compared(tmp_path, 1, "stage_2", 0.90)
    _, _, table = markdown(collect(tmp_path)).partition("Stage 1 to epoch 70:\n\n")
    lines = table.splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [
        TITLES["last"], TITLES["stage_2"], TITLES["plain_to_the_end"]
    ]  # fmt: skip
    assert lines[0].endswith("| 70.0 | 75.00 | 80.00 | 10 |")
    assert "**91.00**" in lines[2]
    assert "**90.00**" not in lines[1]


def test_epochs_have_tables_and_methods_have_curves(tmp_path: Path) -> None:
    for at, test in ((45, 0.8), (20, 0.7)):
        write_compared(tmp_path, 1, "stage_2", test, at)
    write_compared(tmp_path, 1, "last", 0.5, 20, passes=20.0)
    summary = collect(tmp_path)
    assert summary["at"] == [20, 45]
    assert markdown(summary).count("Stage 1 to epoch") == 2
    found = {name: [row["passes"] for row in rows] for name, rows in curves(summary).items()}
    assert found == {TITLES["last"]: [20.0], TITLES["stage_2"].replace("**", ""): [22.0, 47.0]}


def test_a_folder_without_results_is_explained(tmp_path: Path) -> None:
    (tmp_path / "seed_1" / "at_70").mkdir(parents=True)
    (tmp_path / "seed_1" / "at_70" / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="dimred compare"):
        collect(tmp_path)
