"""The comparison summed up: mean, spread, and who is bold."""

import json
from pathlib import Path

import pytest

from dimred.errors import ConfigError
from dimred.report.comparison import TITLES, collect, markdown


def write_run(folder: Path, seed: int, method: str, test: float, **changes: object) -> None:
    record = {
        "method": method, "seed": seed, "epochs": 72, "chosen": "epoch 1", "forward_epochs": 4.0 + seed,
        "backward_epochs": 2.0, "seconds": 10.0, "val": 0.5, "test": 0.25, "val_reestimated": 0.75,
        "test_reestimated": test,
    }  # fmt: skip
    (folder / f"seed_{seed}").mkdir(exist_ok=True)
    (folder / f"seed_{seed}" / f"{method}.json").write_text(json.dumps(record | changes))


def test_mean_and_spread_over_the_seeds(tmp_path: Path) -> None:
    for seed, test in ((1, 0.80), (2, 0.90), (10, 0.85)):
        write_run(tmp_path, seed, "swa", test)
    summary = collect(tmp_path)
    (row,) = summary["rows"]
    assert summary["seeds"] == [1, 2, 10]
    assert row["test_reestimated"] == {"mean": pytest.approx(0.85), "spread": pytest.approx(0.05)}
    assert row["forward_epochs"] == pytest.approx(4 + 13 / 3)
    assert row["n_seeds"] == 3


def test_the_table_has_the_methods_in_order_and_the_best_on_test_is_bold(tmp_path: Path) -> None:
    write_run(tmp_path, 1, "plain_to_the_end", 0.91, epochs=90)
    write_run(tmp_path, 1, "last", 0.80, epochs=70)
    write_run(tmp_path, 1, "p_bfgs_train", 0.90)
    lines = markdown(collect(tmp_path)).splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == [
        TITLES["last"], TITLES["p_bfgs_train"], TITLES["plain_to_the_end"]
    ]  # fmt: skip
    assert lines[2].endswith("| 70 | 75.00 | 25.00 | 80.00 | 5.0 | 2.0 | 10 |")
    assert "**91.00**" in lines[4]
    assert "**90.00**" not in lines[3]


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    write_run(tmp_path, 1, "last", 0.80)
    assert collect(tmp_path)["rows"][0]["test"] == {"mean": 0.25, "spread": None}
    assert "±" not in markdown(collect(tmp_path))


def test_a_folder_without_results_is_explained(tmp_path: Path) -> None:
    (tmp_path / "seed_1").mkdir()
    (tmp_path / "seed_1" / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="dimred compare"):
        collect(tmp_path)
