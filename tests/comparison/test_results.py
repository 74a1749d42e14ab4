"""The summary of a comparison: means, spreads, the best in bold; and the page with verdict, tables and pictures."""

import math
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from dimred.comparison.methods import METHODS
from dimred.comparison.results import best_row, collect, curves, markdown, write_comparison_page
from dimred.errors import ConfigError
from dimred.run_files.metric import ACCURACY, TOP5, Metric
from tests.helpers.run_files import write_compared


def verdict_and_page(folder: Path) -> tuple[str, str]:
    write_comparison_page(folder, collect(folder))
    text = (folder / "compare.html").read_text()
    [verdict] = re.findall(r'</h1>\n<p class="verdict">(.*?)</p>', text)
    return verdict, text


def test_the_table_has_the_methods_in_order_and_the_best_on_test_is_bold(tmp_path: Path) -> None:
    write_compared(tmp_path, 1, "plain_to_the_end", 0.91, passes=90)
    write_compared(tmp_path, 1, "last", 0.80, passes=70)
    write_compared(tmp_path, 1, "stage_2", 0.90)
    _, _, table = markdown(collect(tmp_path)).partition("Stage 1 to epoch 70:\n\n")
    lines = table.splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [
        METHODS["last"].title,
        f"**{METHODS['stage_2'].title}**",
        METHODS["plain_to_the_end"].title,
    ]
    assert lines[0].endswith("| 70.0 | 75.00 | 80.00 | 10 |")
    assert ["**9" in line for line in lines] == [False, False, True]


def test_a_folder_without_results_is_explained(tmp_path: Path) -> None:
    (tmp_path / "seed_1" / "at_70").mkdir(parents=True)
    (tmp_path / "seed_1" / "at_70" / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="dimred compare"):
        collect(tmp_path)


def test_the_verdict_is_what_val_takes_with_paired_gains_and_costs(tmp_path: Path) -> None:
    for seed, ours, last in ((1, 0.90, 0.80), (2, 0.86, 0.78)):
        write_compared(tmp_path, seed, "stage_2", ours, val_reestimated=0.9)
        write_compared(tmp_path, seed, "last", last, passes=70)
        write_compared(tmp_path, seed, "average", 0.91, passes=70)
        write_compared(tmp_path, seed, "last", 0.5, at=20)
    verdict, text = verdict_and_page(tmp_path)
    assert verdict == (
        "After 70 epochs of stage 1 the val split chooses: stage 2, which has 88.00 ± 2.83 % on "
        "test over 2 seeds, BatchNorm re-estimated. That is 9.00 ± 1.41 points above last weights of stage 1 and 3.00 "
        "± 2.83 points below best average of its snapshots. It took 72.0 passes in all, and 10 s besides stage 1. The "
        "best on test would have been: best average of its snapshots, 91.00 %."
    )
    assert set(re.findall(r'<figure id="figure-(\w+)"', text)) == {"curve"}
    assert "Stage 1 to epoch 20" in text
    assert [row["passes"] for row in curves(collect(tmp_path))[METHODS["last"].title]] == [22.0, 70.0]
    assert "<td>88.00 ± 2.83</td>" in text
    assert {path.name for path in tmp_path.glob("c*.*")} == {"compare.html", "curve.png", "curve.svg"}


def test_one_seed_says_what_it_is_worth(tmp_path: Path) -> None:
    write_compared(tmp_path, 1, "last", 0.80, passes=70)
    assert verdict_and_page(tmp_path)[0].endswith(
        "has 80.00 % on test of one seed, BatchNorm re-estimated. It took 70.0 passes in all, and "
        "10 s besides stage 1. With one seed, differences below half a point mean nothing."
    )


def test_top5_has_a_column_of_its_own(tmp_path: Path) -> None:
    both = {"metrics": [asdict(ACCURACY), asdict(TOP5)]}
    for seed, value in ((1, 0.9), (2, 0.92)):
        figures = dict.fromkeys(("val", "test", "val_reestimated"), 0.5) | {"test_reestimated": value}
        write_compared(tmp_path, seed, "last", 0.80, passes=70, other_metrics={"top5": figures}, **both)
    table = markdown(collect(tmp_path))
    assert "|  | passes | val, % | test, % | test top5, % | seconds |" in table
    assert "| 75.00 ± 0.00 | **80.00 ± 0.00** | 91.00 ± 1.41 | 10 |" in table


def test_another_metric_is_told_as_it_is_and_chosen_by_the_loss(tmp_path: Path) -> None:
    own = {"metrics": [asdict(Metric("rmse"))], "batch_norm": False}
    write_compared(tmp_path, 1, "last", 0.5, passes=70, val_loss=0.30, test_loss=0.31, **own)
    write_compared(tmp_path, 1, "average", 0.25, passes=70, val_loss=0.10, test_loss=0.11, **own)
    verdict, text = verdict_and_page(tmp_path)
    assert "chooses: best average of its snapshots, which has 0.25 (rmse) on test of one seed. " in verdict
    assert "That is against 0.5 for last weights of stage 1. " in verdict
    assert "BatchNorm" not in text
    assert "<td><b>0.25</b></td>" in text


def test_a_score_that_is_not_finite_is_never_the_best_and_the_files_are_json(tmp_path: Path) -> None:
    own = {"metrics": [asdict(Metric("rmse"))], "batch_norm": False}
    write_compared(tmp_path, 1, "last", 0.5, passes=70, test_loss=None, **own)
    write_compared(tmp_path, 1, "average", 0.25, passes=70, test_loss=0.11, **own)
    rows = collect(tmp_path)["rows"]
    assert math.isnan(rows[0]["test_loss"]["mean"])
    assert best_row(rows, "test", Metric("rmse"))["method"] == "average"
    accuracies = [{"test_reestimated": {"mean": mean}} for mean in (math.nan, 0.3, 0.4)]
    assert best_row(accuracies, "test", ACCURACY) is accuracies[2]
