"""``dimred compare`` on a task whose epochs take milliseconds: which networks it judges, on what, and at which cost."""

import json
import math
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import dimred as library
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.cli.measure import compare
from dimred.comparison import methods
from dimred.comparison.summary import TITLES
from dimred.config import StageOneConfig, load_config
from dimred.errors import ConfigError, FaultError, SeriesError, StoppedError
from dimred.io.atomic import FolderLock
from dimred.io.checksums import read_checksummed
from dimred.io.run_names import full_checkpoints
from dimred.pipelines.stage_1 import stage_1
from dimred.report.record import passes_of, training_passes
from dimred.stages.device import set_up
from tests.helpers.processes import nothing_is_left, soon
from tests.helpers.tiny_run import stage_1_run
from tests.helpers.tiny_task import TASK

STAGE_ONE: dict[str, Any] = {
    "epochs": 4,
    "schedule": {"peak": 0.1, "warmup_epochs": 1, "total_epochs": 6},
    "checkpoints": {"every_epochs": 2},
    "snapshots": {"per_epoch": 2},
}
FEW_SNAPSHOTS: dict[str, Any] = {"snapshots": {"per_epoch": 2, "keep": 5}}
STAGE_TWO: dict[str, Any] = {"epochs": "20%", "reestimate_batches": 1}
SEARCH: dict[str, Any] = STAGE_TWO | {"search": {"n_components": 2}, "start": "best"}
AT, PASSES = 4, 1  # 20 % of all passes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two stage 1 runs with different seeds, the second with few snapshots, and stage 2's configurations."""
    folder = tmp_path_factory.mktemp("compared")
    for seed, changed in ((3, {}), (4, FEW_SNAPSHOTS)):
        set_up(seed)
        settings = StageOneConfig.model_validate(TASK | STAGE_ONE | {"seed": seed} | changed)
        stage_1_run(settings)(folder / f"run_{seed}", False)
    for name, settings in (("two", STAGE_TWO), ("search", SEARCH)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(TASK | settings))
    return folder


@pytest.fixture(scope="module")
def compared(folder: Path) -> dict[str, Any]:
    rows = ["plain_to_the_end", "stage_2", "average", "last"]
    return library.compare("nowhere", [folder / "run_3"], folder / "two.yaml", folder / "out", methods=rows)


def copied(run: Path, to: Path, **changed: object) -> Path:
    shutil.copytree(run, to)
    config = to / "config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | changed))
    return to


def test_methods_from_one_stage_1(folder: Path, compared: dict[str, Any]) -> None:
    rows = {row["method"]: row for row in compared["rows"]}
    assert list(rows) == ["last", "average", "stage_2", "plain_to_the_end"]  # whatever was typed
    result = read_checksummed(folder / "out" / "seed_3" / f"at_{AT}" / "stage_2" / "result.json")
    average, kept = (result[f"{what}_cost"]["forward_passes"] for what in ("average", "kept"))
    assert min(average, kept) > 0
    assert {name: row["passes"] for name, row in rows.items()} == pytest.approx({
        "last": AT, "average": AT + average / 3, "stage_2": AT + PASSES + (average + kept) / 3, "plain_to_the_end": 6
    })  # fmt: skip
    assert rows["last"]["seconds"] == 0 < rows["average"]["seconds"] < rows["stage_2"]["seconds"]
    assert rows["average"]["chosen"] == [result["average_of"]]
    networks = {run["method"]: read_checkpoint(Path(run["network"])) for run in compared["runs"]}
    assert networks["last"]["0.weight"].shape == (6, 4)
    assert len({network["0.weight"].tobytes() for network in networks.values()}) >= 3  # val may have kept the average
    assert compared == json.loads((folder / "out" / "compare.json").read_text())


def test_the_passes_of_a_stop_s_measurements_count(folder: Path, tmp_path: Path) -> None:
    run = copied(folder / "run_3", tmp_path / "run", stop={"every_epochs": 2})
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        if record["epoch"] in (2, 4):
            record["averaged_forward_passes"] = 4.5
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    found = library.compare("nowhere", [run], folder / "two.yaml", tmp_path / "out", methods=["last"], at=[2, 4])
    assert [row["passes"] for row in found["rows"]] == [2 + 1.5, 4 + 3.0]


def test_the_figures_are_those_of_the_runs(folder: Path, compared: dict[str, Any]) -> None:
    """Both stages report on val by default."""
    rows, place = {run["method"]: run for run in compared["runs"]}, folder / "out" / "seed_3" / f"at_{AT}"
    result = read_checksummed(place / "stage_2" / "result.json")
    assert rows["stage_2"]["val_reestimated"] == pytest.approx(result["accuracy_reestimated"])
    assert rows["last"]["val"] == pytest.approx(result["accuracy_start"])
    assert rows["last"]["val_reestimated"] == pytest.approx(result["accuracy_reestimated_by_point"]["start"])
    measured = {one["name"]: one["loss"] for one in result["kept_candidates"]}
    assert rows["stage_2"]["val_loss"] == pytest.approx(measured[result["kept"]], rel=1e-5)


def test_plain_training_to_the_end_is_stage_1_uninterrupted(
    folder: Path, compared: dict[str, Any], tmp_path: Path
) -> None:
    set_up(3)
    stage_1_run(StageOneConfig.model_validate(TASK | STAGE_ONE | {"epochs": 6, "seed": 3}))(tmp_path / "whole", False)
    expected = read_checkpoint(full_checkpoints(tmp_path / "whole" / "checkpoint_stage_1")[6])
    [found] = [read_checkpoint(Path(run["network"])) for run in compared["runs"] if run["passes"] == 6]
    assert {name for name in expected if not np.array_equal(found[name], expected[name])} == set()


def test_finished_methods_are_not_run_again(
    folder: Path, compared: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    place = folder / "out" / "seed_3" / f"at_{AT}"
    (place / "last.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in place.glob("*.json")}
    assert len(before) == 3
    compare("nowhere", folder / "two.yaml", [folder / "run_3"], folder / "out", methods="last,stage_2,average")
    assert [text for text in caplog.messages if re.fullmatch(r"seed 3: \w+", text)] == ["seed 3: last"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_curve_over_epochs_tells_who_lacks_the_snapshots_of_a_budget(
    folder: Path, compared: dict[str, Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    runs = [folder / f"run_{seed}" for seed in (3, 4)]
    compare("nowhere", folder / "two.yaml", runs, folder / "out", at="4,2", methods="last", as_json=True)
    printed = capsys.readouterr().out
    summary = json.loads(printed[printed.index("{\n") :])
    assert (summary["seeds"], summary["at"]) == ([3, 4], [2, 4])
    [row] = [row for row in summary["rows"] if (row["method"], row["at"]) == ("last", 2)]
    assert row["n_seeds"] == 2
    assert row["test_reestimated"]["spread"] is not None
    page = (folder / "out" / "compare.html").read_text()
    assert "After 4 epochs of stage 1 the val split takes: " in page
    assert str(folder / "run_4") in page
    assert (folder / "out" / "curve.png").exists()
    text = (folder / "out" / "compare.md").read_text()
    assert text.index("Stage 1 to epoch 2:") < text.index("Stage 1 to epoch 4:")
    assert caplog.text.count("has 1 of the 4 snapshots that it would have had, had it ended at epoch 2") == 1


@pytest.mark.slow
def test_the_peak_is_chosen_on_the_first_seed_and_kept_and_is_none_that_diverges(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(methods, "PEAK_FACTORS", (1e30, 1.0, 2.0))
    runs = [folder / f"run_{seed}" for seed in (3, 4)]
    found = library.compare("nowhere", runs, folder / "two.yaml", tmp_path, methods=["stage_2", "plain_for_total"])[
        "runs"
    ]
    found = [run for run in found if run["method"] == "plain_for_total"]
    assert "plain training with the peak 1e+29 is left out: seed 3" in caplog.text
    assert found[0]["choice"] in (0.1, 0.2)
    assert found[1]["choice"] == found[0]["choice"]
    trained = [sorted((tmp_path / f"seed_{seed}").glob("at_4/plain_*.yaml")) for seed in (3, 4)]
    assert list(map(len, trained)) == [3, 1]
    losses = [run["val_loss"] for run in found]
    made = load_config(StageOneConfig, trained[1][0])
    results = [tmp_path / f"seed_{seed}" / "at_4" / "stage_2" / "result.json" for seed in (3, 4)]
    total = math.ceil(AT + passes_of(read_checksummed(results[1])))  # what choosing costs included
    assert total > AT + PASSES
    assert (made.epochs, made.schedule.total_epochs, made.schedule.name) == (total, total, "linear")
    assert found[1]["passes"] == total
    assert np.isfinite(losses).all()


def test_a_training_that_did_not_run_is_not_left_out_of_the_choice(
    folder: Path, compared: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(folder / "out", tmp_path / "out")
    busy = tmp_path / "out" / "seed_3" / f"at_{AT}" / "plain_0.05"
    with FolderLock(busy, "--out"), pytest.raises(FaultError, match=r"plain_0\.05 ended with status 2"):
        library.compare(
            "nowhere", [folder / "run_3"], folder / "two.yaml", tmp_path / "out", methods=["plain_for_total"]
        )


@pytest.mark.slow
def test_a_configured_search_has_a_row_and_the_others_as_many_passes(folder: Path, tmp_path: Path) -> None:
    summary = library.compare("nowhere", [folder / "run_3"], folder / "search.yaml", tmp_path, methods=["average"])
    rows = {row["method"]: row for row in summary["rows"]}
    assert list(rows) == ["average", "stage_2", "search"]
    searched = read_checksummed(tmp_path / "seed_3" / f"at_{AT}" / "search" / "result.json")
    equal = math.ceil(training_passes(searched, searched["epochs"]))
    assert equal >= 2  # epochs that cost as much as the search with its trials
    result = read_checksummed(tmp_path / "seed_3" / f"at_{AT}" / "stage_2" / "result.json")
    assert (result["basis"], result["epochs"]) == (None, equal)
    assert rows["average"]["chosen"] == [result["started_from"]]


@pytest.mark.slow
def test_a_stage_1_of_two_ranks_goes_on_with_its_steps(folder: Path, tmp_path: Path) -> None:
    """The ranks' batches are micro-batches here, because config.yaml does not tell the number of ranks."""
    settings = TASK | STAGE_ONE | {"data": TASK["data"] | {"batch_size": 3}, "accumulation": 2}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(settings))
    stage_1(tmp_path, tmp_path / "one.yaml", tmp_path / "one")
    copied(tmp_path / "one", tmp_path / "two", accumulation=1)
    made = {}
    for name, accumulation in (("one", 2), ("two", 1)):
        runs = library.compare(
            "nowhere", [tmp_path / name], folder / "two.yaml", tmp_path / f"out_{name}",
            methods=["stage_2", "plain_to_the_end"],
            overrides=["data.batch_size=3", f"accumulation={accumulation}"],
        )["runs"]  # fmt: skip
        made[name] = {run["method"]: Path(run["network"]).read_bytes() for run in runs}
    assert list(made["one"]) == ["stage_2", "plain_to_the_end"]
    assert made["one"] == made["two"]


def test_what_does_not_go_together_is_refused_before_anything_is_run(folder: Path, tmp_path: Path) -> None:
    again = copied(folder / "run_3", tmp_path / "run_3")
    (tmp_path / "stage_2" / "checkpoint_stage_2").mkdir(parents=True)
    ended = copied(folder / "run_3", tmp_path / "ended", schedule=STAGE_ONE["schedule"] | {"total_epochs": 4})
    (checkpoint,) = (ended / "checkpoint_stage_1").glob("network-4_*.ckpt")
    checkpoint.rename(checkpoint.with_name("network-4_999.ckpt"))
    constant = {"name": "constant", "peak": 1.0}
    free = copied(folder / "run_3", tmp_path / "free", optimizer={"name": "schedule_free"}, schedule=constant)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"runs": [folder / "run_3", again]}, ConfigError, r"of seed 3, which .* has too; give one run"),
        ({"runs": [tmp_path / "stage_2"]}, ConfigError, "a run of stage 2; give the folder of the stage 1"),
        ({"runs": [free]}, ConfigError, "trained with schedule_free, which leaves stage 2 nothing to do"),
        ({"at": [3]}, ConfigError, r"no full checkpoint of epoch 3 \(of these epochs: 2, 4\); finish stage 1"),
        ({"overrides": ["search.n_components=9"]}, SeriesError, "n_components is 9, which needs at least 10 snapshots"),
        ({"runs": [ended], "methods": ["stage_2"]}, ConfigError, "nothing is left to cool down"),
        (
            {"out": checkpoint.parent.parent / "config.yaml" / "out"},
            ConfigError,
            "--out is .* can't be made or written",
        ),
    ]
    for changed, kind, said in cases:
        options = {"runs": [folder / "run_3"], "out": tmp_path / "out"} | changed
        with pytest.raises(kind, match=said):
            library.compare("nowhere", config=folder / "two.yaml", **options)
        assert not (tmp_path / "out").exists()


def test_rows_of_another_run_or_configuration_do_not_mix(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run_3", tmp_path / "run_3")
    options: dict[str, Any] = {"out": tmp_path / "out", "methods": "last"}
    compare("nowhere", folder / "two.yaml", [folder / "run_3"], **options)
    with pytest.raises(ConfigError, match=rf"RUN is '{tmp_path}/run_3', but .* has rows of '{folder}/run_3'"):
        compare("nowhere", folder / "two.yaml", [tmp_path / "run_3"], **options)
    with pytest.raises(ConfigError, match=r"DATA is 'elsewhere', but .* has rows of '.*nowhere'"):
        compare("elsewhere", folder / "two.yaml", [folder / "run_3"], **options)
    with pytest.raises(ConfigError, match="other settings"):
        compare("nowhere", folder / "two.yaml", [folder / "run_3"], overrides=["epochs=2"], **options)


def test_a_signal_is_told_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    """MindSpore's own handler would end the process without a word."""
    out = tmp_path / "out"

    def interrupt() -> None:
        while not list(out.glob("seed_3/*/stage_2.log")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    with pytest.raises(StoppedError) as stopped:
        compare("nowhere", folder / "two.yaml", [folder / "run_3"], out, methods="stage_2")
    assert str(stopped.value) == f"stopped by SIGTERM; what is finished is in {out}; the same command goes on"
    assert stopped.value.exit_status == 143
    assert soon(lambda: nothing_is_left(out))


@pytest.mark.slow
def test_every_method_over_two_seeds(folder: Path, tmp_path: Path) -> None:
    compare("nowhere", folder / "search.yaml", [folder / "run_3", folder / "run_4"], tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert [row["method"] for row in rows] == list(TITLES)
    assert all(row["n_seeds"] == 2 and row["test"]["spread"] is not None for row in rows)


@pytest.mark.slow
def test_schedule_free_training_has_a_row_for_as_many_passes(folder: Path, tmp_path: Path) -> None:
    """Its rates lie around r / (1 - momentum), and its network is the averaged point with BatchNorm re-estimated."""
    rows = ["stage_2", "schedule_free", "plain_for_total"]
    found = library.compare("nowhere", [folder / "run_3"], folder / "two.yaml", tmp_path, methods=rows)["runs"]
    runs = {run["method"]: run for run in found}
    assert runs["schedule_free"]["passes"] == runs["plain_for_total"]["passes"] >= runs["stage_2"]["passes"]
    assert any(runs["schedule_free"]["choice"] == pytest.approx(rate) for rate in (0.5, 1.0, 2.0))
    network = Path(runs["schedule_free"]["network"])
    assert network.name == "network-final.ckpt"
    made = load_config(StageOneConfig, network.parents[1] / "config.yaml")
    assert made.optimizer.name == "schedule_free"
    assert made.schedule.peak == runs["schedule_free"]["choice"]
