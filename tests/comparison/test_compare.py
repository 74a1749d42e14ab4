"""``dimred compare`` on a task whose epochs take milliseconds: which networks it judges, on what, and at which cost."""

import json
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
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.cli.measure import compare
from dimred.comparison.methods import METHODS
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.errors import ConfigError, FaultError, SeriesError, StoppedError
from dimred.io.atomic import BOOT, FolderLock
from dimred.io.checksums import read_checksummed, write_checksummed
from dimred.io.file_format import COMPARED
from dimred.run_files.run_names import full_checkpoints
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.begun import Begun, Pin, write_pins
from dimred.runs.device import set_up
from tests.comparison.runs import AT, PASSES, SEARCH, STAGE_ONE, TASK, copied
from tests.helpers.processes import nothing_is_left, soon
from tests.helpers.run_files import write_config
from tests.helpers.tiny_run import stage_1_run


@pytest.mark.slow
def test_methods_from_one_stage_1(folder: Path, compared: dict[str, Any]) -> None:
    rows = {row["method"]: row for row in compared["rows"]}
    assert list(rows) == ["last", "average", "stage_2"]  # whatever was typed
    result = StageTwoResult.read(folder / "out" / "seed_3" / f"at_{AT}" / "stage_2" / "result.json")
    average, kept = (result.choices[what].forward_passes for what in ("average", "kept"))
    assert min(average, kept) > 0
    assert {name: row["passes"] for name, row in rows.items()} == pytest.approx(
        {"last": AT, "average": AT + average / 3, "stage_2": AT + PASSES + (average + kept) / 3}
    )
    assert rows["last"]["seconds"] == 0 < min(rows[name]["seconds"] for name in ("average", "stage_2"))
    assert rows["average"]["chosen"] == [result.choices["average"].name]
    networks = {run["method"]: read_checkpoint(Path(run["network"])) for run in compared["runs"]}
    assert networks["last"]["0.weight"].shape == (6, 4)
    assert len({network["0.weight"].tobytes() for network in networks.values()}) >= 2  # val may have kept the average
    assert compared == json.loads((folder / "out" / "compare.json").read_text())


@pytest.mark.slow
def test_the_figures_are_those_of_the_runs(folder: Path, compared: dict[str, Any]) -> None:
    """Both stages report on val by default."""
    rows, place = {run["method"]: run for run in compared["runs"]}, folder / "out" / "seed_3" / f"at_{AT}"
    result = StageTwoResult.read(place / "stage_2" / "result.json")
    assert rows["stage_2"]["val_reestimated"] == pytest.approx(result.main.at("final"))
    assert rows["last"]["val"] == pytest.approx(result.main.by_point["start"]["as_trained"])
    assert rows["last"]["val_reestimated"] == pytest.approx(result.main.at("start"))
    measured = {one["name"]: one["loss"] for one in result.choices["kept"].candidates}
    assert rows["stage_2"]["val_loss"] == pytest.approx(measured[result.kept], rel=1e-5)


@pytest.mark.slow
def test_finished_methods_are_not_run_again(
    folder: Path, compared: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    place = folder / "out" / "seed_3" / f"at_{AT}"
    (place / "last.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in place.glob("*.json")}
    assert len(before) == 2
    call = ("nowhere", [folder / "run_3"], folder / "two.yaml", folder / "out", "last,stage_2,average")
    with pytest.raises(ConfigError, match="holds an earlier comparison of 2 rows; continue it with --resume, or"):
        compare(*call)
    assert {path: path.stat().st_mtime_ns for path in place.glob("*.json")} == before
    compare(*call, resume=True)
    assert "2 rows of an earlier call are kept" in caplog.messages
    assert [text for text in caplog.messages if re.fullmatch(r"seed 3: \w+", text)] == ["seed 3: last"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_a_curve_over_epochs_tells_who_lacks_the_snapshots_of_a_budget(
    folder: Path, compared: dict[str, Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    runs = [folder / f"run_{seed}" for seed in (3, 4)]
    compare("nowhere", runs, folder / "two.yaml", folder / "out", at="4,2", methods="last", resume=True, as_json=True)
    printed = capsys.readouterr().out
    summary = json.loads(printed[printed.index("{\n") :])
    assert (summary["seeds"], summary["at"]) == ([3, 4], [2, 4])
    [row] = [row for row in summary["rows"] if (row["method"], row["at"]) == ("last", 2)]
    assert row["n_seeds"] == 2
    assert row["test_reestimated"]["spread"] is not None
    page = (folder / "out" / "compare.html").read_text()
    assert "After 4 epochs of stage 1 the val split chooses: " in page
    assert str(folder / "run_4") in page
    assert (folder / "out" / "curve.png").exists()
    text = (folder / "out" / "compare.md").read_text()
    assert text.index("Stage 1 to epoch 2:") < text.index("Stage 1 to epoch 4:")
    assert caplog.text.count("has 1 of the 4 snapshots that it would have if it had ended at epoch 2") == 1


def test_what_does_not_go_together_is_refused_before_anything_is_run(folder: Path, tmp_path: Path) -> None:
    again = copied(folder / "run_3", tmp_path / "run_3")
    (tmp_path / "stage_2" / "checkpoint_stage_2").mkdir(parents=True)
    ended = copied(folder / "run_3", tmp_path / "ended", schedule=STAGE_ONE["schedule"] | {"total_epochs": 4})
    constant = {"name": "constant", "peak": 1.0}
    free = copied(folder / "run_3", tmp_path / "free", optimizer={"name": "schedule_free"}, schedule=constant)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"runs": [folder / "run_3", again]}, ConfigError, r"has the same seed 3 as .*; give one run"),
        ({"runs": [tmp_path / "stage_2"]}, ConfigError, "a stage 2 run; give the folder of a finished stage 1"),
        ({"runs": [free]}, ConfigError, "trained with schedule_free, so stage 2 has nothing to do"),
        (
            {"methods": ["cooldown"]},
            ConfigError,
            "does not apply here: it takes the place of a search",
        ),
        ({"runs": [ended], "methods": ["plain_to_the_end"]}, ConfigError, "does not go beyond epoch 4; leave it out"),
        ({"at": [3]}, ConfigError, r"no full checkpoint of epoch 3 \(epochs with one: 2, 4\); finish stage 1"),
        (
            {"overrides": ["method=search", "search.n_components=9"]},
            SeriesError,
            "n_components is 9, which needs at least 10 snapshots",
        ),
        ({"runs": [ended], "methods": ["stage_2"]}, ConfigError, "nothing is left to cool down"),
        (
            {"out": ended / "config.yaml" / "out"},
            ConfigError,
            "--out is .* can't be made or written",
        ),
        ({"out": folder}, ConfigError, "--out is .* holds something else; name another folder"),
        ({"out": ended, "resume": True}, ConfigError, "--out is .* holds something else; name another folder"),
    ]
    for changed, kind, said in cases:
        options = {"runs": [folder / "run_3"], "out": tmp_path / "out"} | changed
        with pytest.raises(kind, match=said):
            library.compare("nowhere", config=folder / "two.yaml", **options)
        assert not (tmp_path / "out").exists()


def test_rows_of_another_configuration_do_not_mix(folder: Path, tmp_path: Path) -> None:
    leftover = tmp_path / "out" / f".writing-{BOOT}-0123abcd.tmp"  # of a call that was killed
    leftover.parent.mkdir()
    leftover.touch()
    options: dict[str, Any] = {"out": tmp_path / "out", "methods": "last", "resume": True}
    compare("nowhere", [folder / "run_3"], folder / "two.yaml", **options)
    for override in ("epochs=2", "clipping.norm=2"):
        with pytest.raises(ConfigError, match="another configuration of stage 2"):
            compare("nowhere", [folder / "run_3"], folder / "two.yaml", overrides=[override], **options)
    assert not leftover.exists()


@pytest.mark.usefixtures("compared")
@pytest.mark.slow
def test_rows_of_other_weights_or_data_do_not_mix(folder: Path, tmp_path: Path) -> None:
    """The digest in a row is made another one; a run that has only moved goes on."""
    row = folder / "out" / "seed_3" / f"at_{AT}" / "average.json"
    before = row.read_text()
    record = read_checksummed(row, COMPARED)
    call = ("elsewhere", [shutil.copytree(folder / "run_3", tmp_path / "moved")], folder / "two.yaml", folder / "out")
    assert {*record["digests"]} == {"RUN", "DATA/train", "DATA/val", "DATA/test"}
    for argument in record["digests"]:
        write_checksummed(row, COMPARED, record | {"digests": {**record["digests"], argument: "another"}})
        with pytest.raises(ConfigError, match=f"{argument} is not what it was when the rows in"):
            compare(*call, "last", resume=True)
    row.write_text(before)
    compare(*call, "last", resume=True)


def test_data_that_stage_1_was_not_trained_on_are_refused(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder / "run_3", tmp_path / "run")
    begun = Begun.open(run, StageOneConfig)
    write_pins(run, begun.pins | {"DATA/train": Pin("other samples", "/there")})
    with pytest.raises(ConfigError, match=r"DATA is 'nowhere', whose 'train' has .* was trained on '/there'"):
        compare("nowhere", [run], folder / "two.yaml", tmp_path / "out")


@pytest.mark.slow
def test_a_signal_is_told_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    """MindSpore's own handler would end the process without a word."""
    out = tmp_path / "out"

    def interrupt() -> None:
        while not list(out.glob("seed_3/*/stage_2.log")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    with pytest.raises(StoppedError) as stopped:
        compare("nowhere", [folder / "run_3"], folder / "two.yaml", out, methods="stage_2")
    assert str(stopped.value) == f"stopped by SIGTERM; the finished rows are in {out}; continue with --resume"
    assert stopped.value.exit_status == 143
    assert soon(lambda: nothing_is_left(out))


@pytest.mark.slow
def test_plain_training_to_the_end_is_stage_1_uninterrupted(folder: Path, tmp_path: Path) -> None:
    run, out = folder / "run_3", tmp_path / "out"
    compared = library.compare("nowhere", [run], folder / "two.yaml", out, methods=["plain_to_the_end"])
    set_up(3, mode="pynative")
    stage_1_run(StageOneConfig.model_validate(TASK | STAGE_ONE | {"epochs": 6, "seed": 3}))(tmp_path / "whole", False)
    expected = read_checkpoint(full_checkpoints(tmp_path / "whole" / "checkpoint_stage_1")[6])
    [row] = compared["runs"]
    assert row["passes"] == 6
    network = read_checkpoint(Path(row["network"]))
    assert {name for name in expected if not np.array_equal(network[name], expected[name])} == set()


@pytest.mark.slow
def test_a_training_that_did_not_run_is_not_left_out_of_the_choice(
    folder: Path, compared: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(folder / "out", tmp_path / "out")
    busy = tmp_path / "out" / "seed_3" / f"at_{AT}" / "plain_0.05"
    call = ("nowhere", [folder / "run_3"], folder / "two.yaml", tmp_path / "out")
    with FolderLock(busy, "--out"), pytest.raises(FaultError, match=r"plain_0\.05 ended with status 2"):
        library.compare(*call, methods=["plain_for_total"], resume=True)


@pytest.mark.slow
def test_the_passes_of_a_stop_s_measurements_count_and_stage_2_is_that_in_the_folder_of_the_first_run(
    folder: Path, tmp_path: Path
) -> None:
    runs = [copied(folder / f"run_{seed}", tmp_path / f"run_{seed}", stop={"every_epochs": 2}) for seed in (3, 4)]
    for run, n_components in zip(runs, (2, 3), strict=True):
        values = yaml.safe_load((run / "config.yaml").read_text())
        write_config(run, yaml.safe_dump(values | {"stage_2": SEARCH | {"search": {"n_components": n_components}}}))
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            if record["epoch"] in (2, 4):
                record["averaged_forward_passes"] = 4.5
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    options: dict[str, Any] = {"methods": ["last"], "at": [2, 4], "overrides": ["epochs=2"]}
    summary = library.compare("nowhere", runs, out=tmp_path / "out", **options)
    assert [row["passes"] for row in summary["rows"]] == [2 + 1.5, 4 + 3.0]
    two = load_config(StageTwoConfig, tmp_path / "out" / "config.yaml")
    assert (two.method, two.epochs, two.search.n_components) == ("search", 2, 2)


@pytest.mark.slow
def test_the_average_beside_stage_2_is_one_of_snapshots(folder: Path, tmp_path: Path) -> None:
    """Stage 1's last weights are the worst here."""
    run = copied(folder / "run_3", tmp_path / "run")
    last = full_checkpoints(run / "checkpoint_stage_1")[AT]
    arrays = read_checkpoint(last)
    write_checkpoint(last, arrays | {"0.weight": -arrays["0.weight"]})
    summary = library.compare("nowhere", [run], folder / "search.yaml", tmp_path / "out", methods=["last", "average"])
    rows = {row["method"]: row for row in summary["runs"]}
    assert rows["average"]["chosen"] != "last"
    assert rows["average"]["val_loss"] < rows["last"]["val_loss"] / 2
    assert rows["average"]["passes"] > AT
    average = read_checkpoint(tmp_path / "out" / "seed_3" / f"at_{AT}" / "average.ckpt")["0.weight"]
    snapshots = CheckpointSeries.open(run / "checkpoint_stage_1" / "checkpoint_pca").paths
    taken = np.array([read_checkpoint(path)["0.weight"] for path in snapshots])
    assert (average <= taken.max(0) + 1e-6).all()
    assert (average >= taken.min(0) - 1e-6).all()


def test_stage_2_is_called_by_its_method(folder: Path) -> None:
    for name, title in (("two", "stage 2: cooldown"), ("search", "stage 2: search")):
        two = load_config(StageTwoConfig, folder / f"{name}.yaml")
        assert METHODS["stage_2"].title_with(two) == title
