"""The methods that ``dimred compare`` compares: which network each of them makes, by which training, at which cost."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import dimred as library
from dimred.cli.measure import compare
from dimred.comparison import methods
from dimred.comparison.methods import METHODS
from dimred.config import StageOneConfig, load_config
from dimred.pipelines.stage_1 import stage_1
from dimred.report.run_record import read_stage_1
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.begun import Begun, Pin, write_pins
from tests.comparison.runs import AT, PASSES, STAGE_ONE, TASK, copied
from tests.helpers.run_files import write_compared


@pytest.mark.slow
def test_the_peak_is_chosen_on_the_first_seed_and_kept_and_is_none_that_diverges(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(methods, "PEAK_FACTORS", (1e30, 1.0, 2.0))
    runs = [folder / f"run_{seed}" for seed in (3, 4)]
    rows = library.compare("nowhere", runs, folder / "two.yaml", tmp_path, methods=["stage_2", "plain_for_total"])[
        "runs"
    ]
    rows = [run for run in rows if run["method"] == "plain_for_total"]
    assert "plain training with the peak 1e+29 is left out: seed 3" in caplog.text
    assert rows[0]["diverged"] == "with the peak 1e+29"
    assert rows[0]["seconds"] > sum(
        read_stage_1(tmp_path / "seed_3" / "at_4" / f"plain_{rate}" / "checkpoint_stage_1").seconds_until(
            rows[0]["passes"]
        )
        for rate in ("0.1", "0.2")
    )
    assert rows[0]["choice"] in (0.1, 0.2)
    assert rows[1]["choice"] == rows[0]["choice"]
    trained = [sorted((tmp_path / f"seed_{seed}").glob("at_4/plain_*.yaml")) for seed in (3, 4)]
    assert list(map(len, trained)) == [3, 1]
    losses = [run["val_loss"] for run in rows]
    made = load_config(StageOneConfig, trained[1][0])
    results = [tmp_path / f"seed_{seed}" / "at_4" / "stage_2" / "result.json" for seed in (3, 4)]
    total = math.ceil(AT + StageTwoResult.read(results[1]).passes)  # what choosing costs included
    assert total > AT + PASSES
    assert (made.epochs, made.schedule.total_epochs, made.schedule.name) == (total, total, "linear")
    assert rows[1]["passes"] == total
    assert np.isfinite(losses).all()


@pytest.mark.slow
def test_a_rate_of_another_seed_that_diverges_here_is_replaced_and_what_has_no_network_is_told(
    folder: Path, compared: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "out", tmp_path / "out")
    write_compared(tmp_path / "out", 8, "plain_for_total", 0.9, at=AT, choice=0.1 * 1e30)

    def compared_with(factor: float, **options: Any) -> dict[str, Any]:
        monkeypatch.setattr(methods, "PEAK_FACTORS", (factor,))
        call = ("nowhere", [folder / "run_3"], folder / "two.yaml", tmp_path / "out")
        return library.compare(*call, resume=True, **options)

    summary = compared_with(1e30, methods=["plain_for_total"])
    [left_out] = summary["diverged"]
    assert left_out["method"] == "plain_for_total"
    assert left_out["seconds"] > 0
    assert "val_loss" not in left_out
    said = "plain training, schedule made for this total, stage 1 to epoch 4, seed 3: training diverged with the peak "
    assert f"{said}1e+29 (which seed 8 chose) and left no network in " in (tmp_path / "out" / "compare.md").read_text()
    assert {row["method"]: row["n_seeds"] for row in summary["rows"]}["plain_for_total"] == 1  # seed 8

    (tmp_path / "out" / "seed_3" / f"at_{AT}" / "plain_for_total.json").unlink()
    summary = compared_with(1.0, methods=["plain_for_total"])
    [row] = [run for run in summary["runs"] if (run["method"], run["seed"]) == ("plain_for_total", 3)]
    assert (row["choice"], row["diverged"]) == (0.1, "with the peak 1e+29 (which seed 8 chose)")
    alone = read_stage_1(Path(row["network"]).parent).seconds_until(row["passes"])
    assert row["seconds"] > alone  # the run that diverged, again from its beginning
    assert f"{said}1e+29 (which seed 8 chose)." in (tmp_path / "out" / "compare.html").read_text()
    assert summary["diverged"] == []


@pytest.mark.slow
def test_stage_2_is_what_its_configuration_makes_it_and_a_cooldown_has_as_many_passes(
    folder: Path, tmp_path: Path
) -> None:
    summary = library.compare("nowhere", [folder / "run_3"], folder / "search.yaml", tmp_path, methods=["cooldown"])
    rows = {row["method"]: row for row in summary["rows"]}
    assert list(rows) == ["stage_2", "cooldown"]
    assert [row["title"] for row in rows.values()] == ["stage 2: search", "cooldown in place of the search"]
    assert rows["stage_2"]["chosen"] == [""]  # a search keeps what it ends with; val chooses nothing
    searched, cooled = (
        StageTwoResult.read(tmp_path / "seed_3" / f"at_{AT}" / name / "result.json") for name in ("stage_2", "cooldown")
    )
    assert (searched.cooldown, searched.basis["n_components"], searched.kept) == (None, 2, None)
    equal = math.ceil(searched.training_passes(searched.epochs))
    assert equal >= 2  # epochs that cost as much as the search with its trials
    assert (cooled.basis, cooled.epochs, cooled.kept in (None, "average", "start", str(equal))) == (None, equal, True)
    assert cooled.cooldown["factor"] == 0.5


@pytest.mark.slow
def test_a_stage_1_of_two_ranks_goes_on_with_its_steps(folder: Path, tmp_path: Path) -> None:
    """The ranks' batches are micro-batches here, as many as the run's pins say that there were ranks."""
    shared = {"data": TASK["data"] | {"batch_size": 3}, "accumulation": 2}
    settings = TASK | shared | {"stage_1": STAGE_ONE}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(settings))
    stage_1(tmp_path, tmp_path / "one.yaml", tmp_path / "one")
    copied(tmp_path / "one", tmp_path / "two", accumulation=1)
    begun = Begun.open(tmp_path / "one", StageOneConfig)
    write_pins(tmp_path / "two", begun.pins | {"devices": Pin("2")})
    made = {}
    for name, accumulation in (("one", 2), ("two", 1)):
        runs = library.compare(
            "nowhere",
            [tmp_path / name],
            folder / "two.yaml",
            tmp_path / f"out_{name}",
            methods=["stage_2", "plain_to_the_end"],
            overrides=["data.batch_size=3", f"accumulation={accumulation}"],
        )["runs"]
        made[name] = {run["method"]: Path(run["network"]).read_bytes() for run in runs}
    assert list(made["one"]) == ["stage_2", "plain_to_the_end"]
    assert made["one"] == made["two"]


@pytest.mark.slow
def test_every_method_over_two_seeds(folder: Path, tmp_path: Path) -> None:
    compare("nowhere", [folder / "run_3", folder / "run_4"], folder / "search.yaml", tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert [row["method"] for row in rows] == list(METHODS)
    assert all(row["n_seeds"] == 2 and row["test"]["spread"] is not None for row in rows)


@pytest.mark.slow
def test_schedule_free_training_has_a_row_for_as_many_passes(folder: Path, tmp_path: Path) -> None:
    """Its rates lie around r / (1 - momentum), and its network is the averaged point with BatchNorm re-estimated."""
    rows = ["stage_2", "schedule_free", "plain_for_total"]
    means = copied(folder / "run_3", tmp_path / "means", snapshots={"per_epoch": 2, "content": "mean"})
    summary = library.compare("nowhere", [means], folder / "two.yaml", tmp_path / "out", methods=rows)
    runs = {run["method"]: run for run in summary["runs"]}
    assert runs["schedule_free"]["passes"] == runs["plain_for_total"]["passes"] >= runs["stage_2"]["passes"]
    assert any(runs["schedule_free"]["choice"] == pytest.approx(rate) for rate in (0.5, 1.0, 2.0))
    network = Path(runs["schedule_free"]["network"])
    assert network.name == "network-final.ckpt"
    made = load_config(StageOneConfig, network.parents[1] / "config.yaml")
    assert made.optimizer.name == "schedule_free"
    assert made.schedule.peak == runs["schedule_free"]["choice"]
