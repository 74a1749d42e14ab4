"""``dimred compare``: who is judged on what, at which cost. On a task that trains in milliseconds, in this process."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mindspore import nn

import dimred as library
from dimred.build import from_stage_1
from dimred.cli.compare import compare
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError, FaultError, SeriesError
from dimred.files.run_names import full_checkpoints
from dimred.pipelines.stage_1 import stage_1
from dimred.report.comparison import TITLES
from dimred.run.device import set_up
from dimred.weights.checkpoint_io import read_checkpoint
from tests.helpers.commands import STAGE_1, STAGE_2, TwoStages, dimred
from tests.helpers.tiny_run import stage_1_run
from tests.helpers.tiny_task import TASK

STAGE_ONE: dict[str, Any] = {
    "epochs": 4,
    "schedule": {"peak": 0.1, "warmup_epochs": 1, "total_epochs": 6},
    "checkpoints": {"every_epochs": 2},
    "snapshots": {"per_epoch": 2},
}
FEW_SNAPSHOTS: dict[str, Any] = {"snapshots": {"per_epoch": 2, "keep": 5}}
STAGE_TWO: dict[str, Any] = {
    "n_components": 2, "epochs": "20%", "reestimate_batches": 1, "residual": "continued",
    "start": "best",
}  # fmt: skip
AT, PASSES = 4, 1.0  # the tiny task's batches fill the whole split


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stage 1 runs with different seeds, and the configuration of stage 2."""
    folder = tmp_path_factory.mktemp("compared")
    for seed in (3, 4):
        set_up(seed)
        stage_1_run(StageOneConfig.model_validate(TASK | STAGE_ONE | {"seed": seed}))(folder / f"run_{seed}", False)
    (folder / "two.yaml").write_text(yaml.safe_dump(TASK | STAGE_TWO))
    return folder


def compared(folder: Path, capsys: pytest.CaptureFixture[str], *seeds: int, **options: Any) -> dict[str, Any]:
    """What a call prints with ``--json``, and what it says meanwhile."""
    runs = [folder / f"run_{seed}" for seed in seeds]
    compare("nowhere", folder / "two.yaml", runs, folder / "out", as_json=True, **options)
    captured = capsys.readouterr()
    summary: dict[str, Any] = json.loads(captured.out[captured.out.index("{\n") :])
    return summary | {"said": captured.err}


def row_of(summary: dict[str, Any], method: str, at: int = AT) -> dict[str, Any]:
    (row,) = [row for row in summary["rows"] if (row["method"], row["at"]) == (method, at)]
    return dict(row)


def test_methods_from_one_stage_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = compared(folder, capsys, 3, methods="cooldown,last,best_window,continued,continued_alone")
    assert summary["said"].count("basis (pca)\n") == 1
    rows = {row["method"]: row for row in summary["rows"]}
    assert list(rows) == ["last", "best_window", "continued", "continued_alone", "cooldown"]  # whatever was typed
    for method in ("last", "best_window"):
        assert (rows[method]["passes"], rows[method]["backward_epochs"]) == (AT, 0.0)
    assert rows["last"]["forward_epochs"] == 0.0 < rows["best_window"]["forward_epochs"]  # choosing costs
    assert rows["continued_alone"]["passes"] == AT + PASSES  # 20 % of all passes
    assert rows["continued_alone"]["backward_epochs"] == PASSES
    equal = 2  # epochs that cost as much as the search with its trials, rounded up
    assert AT + 1.5 * PASSES <= rows["continued"]["passes"] <= AT + equal
    assert rows["cooldown"]["passes"] == AT + equal
    n_starts = 1 if rows["best_window"]["chosen"] == ["last"] else 2
    assert rows["cooldown"]["backward_epochs"] == n_starts * 2 * equal  # at two rates


def test_without_directions_stage_2_costs_its_epochs_and_begins_as_configured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled for a training is freed after it."""
    steps: list[nn.Cell] = []
    for name in ("build_search_step", "build_train_step"):
        build = getattr(from_stage_1, name)

        def remembered(*arguments: Any, build: Any = build, **options: Any) -> nn.Cell:
            steps.append(build(*arguments, **options))
            return steps[-1]

        monkeypatch.setattr(from_stage_1, name, remembered)
    config = folder / "cooldown.yaml"
    config.write_text(yaml.safe_dump(TASK | {"epochs": "20%", "reestimate_batches": 1}))
    methods = ["continued_alone", "cooldown", "plain_to_the_end"]
    rows = library.compare("nowhere", [folder / "run_3"], config, folder / "cooldowns", methods=methods)["rows"]
    assert [row["passes"] for row in rows[:2]] == [AT + PASSES, AT + PASSES]
    assert rows[0]["chosen"][0].startswith("from last: ")
    assert len(steps) > 3
    assert not any(cell.compile_cache for step in steps for _, cell in step.cells_and_names())


def test_what_is_there_is_not_run_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = folder / "out" / "seed_3" / f"at_{AT}"
    before = {path: path.stat().st_mtime_ns for path in seed.glob("*.json")}
    assert len(before) == 5
    summary = compared(folder, capsys, 3, methods="swa,last,continued")
    assert re.findall(r"^seed 3: (\w+)$", summary["said"], re.MULTILINE) == ["swa"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    arrays = {method: read_checkpoint(seed / f"{method}.ckpt") for method in ("swa", "last", "continued")}
    assert len({values["0.weight"].tobytes() for values in arrays.values()}) >= 2  # val may have kept a start


def test_a_curve_over_epochs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = compared(folder, capsys, 3, 4, at="4,2", methods="best_window")
    assert (summary["seeds"], summary["at"]) == ([3, 4], [2, 4])
    assert row_of(summary, "best_window", 2)["test_reestimated"]["spread"] is not None
    assert row_of(summary, "best_window", 2)["n_seeds"] == 2
    page = (folder / "out" / "compare.html").read_text()
    assert "After 4 epochs of stage 1 the val split takes: " in page
    assert str(folder / "run_4") in page
    assert (folder / "out" / "curve.png").exists()
    text = (folder / "out" / "compare.md").read_text()
    assert text.index("Stage 1 to epoch 2:") < text.index("Stage 1 to epoch 4:")


@pytest.mark.slow
def test_the_peak_is_chosen_on_the_first_seed_and_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = compared(folder, capsys, 3, 4, at="2", methods="plain_for_total")
    runs = [run for run in summary["runs"] if run["method"] == "plain_for_total"]
    assert {run["choice"] for run in runs} <= {0.05, 0.1, 0.2}
    assert runs[0]["choice"] == runs[1]["choice"]
    continued = [run for run in summary["runs"] if run["method"] == "continued"]  # run for its passes, not asked for
    totals = [math.ceil(run["passes"]) for run in continued]
    assert [run["backward_epochs"] for run in runs] == [3 * totals[0], totals[1]]
    assert [run["passes"] for run in runs] == totals


def test_a_peak_at_which_plain_training_diverges_is_not_chosen(folder: Path) -> None:
    one, two = StageOneConfig.model_validate(TASK | STAGE_ONE), StageTwoConfig.model_validate(TASK | STAGE_TWO)
    so_far = from_stage_1.StageOneSoFar(Path("nowhere"), folder / "run_3", one, two, 2)
    peak, found = so_far.plain(1, [1e30, 0.1])
    assert (peak, found.kept) == (0.1, "epoch 1")
    assert np.isfinite(found.val_loss)
    with pytest.raises(FaultError, match=r"diverged with each of the peaks 1e\+30"):
        so_far.plain(1, [1e30])


def test_the_end_of_a_schedule_with_a_cooldown_is_that_of_the_cooldown(folder: Path) -> None:
    schedule = STAGE_ONE["schedule"] | {"cooldown": {"after_epoch": 4, "epochs": 1}}
    one = StageOneConfig.model_validate(TASK | STAGE_ONE | {"schedule": schedule})
    two = StageTwoConfig.model_validate(TASK | STAGE_TWO)
    found = from_stage_1.StageOneSoFar(Path("nowhere"), folder / "run_3", one, two, 4).to_the_end()
    assert (found.passes, found.kept) == (PASSES, "epoch 5")


def test_from_python_it_is_the_same(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--methods has 'sva'; allowed: last, swa"):
        library.compare("nowhere", [folder / "run_3"], folder / "two.yaml", folder / "out", methods=["sva"])
    summary = library.compare("nowhere", [folder / "run_3"], folder / "two.yaml", folder / "out", methods=["last"])
    assert summary == json.loads((folder / "out" / "compare.json").read_text())


def test_a_larger_budget_goes_on_with_the_stage_1_that_is_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, config = tmp_path / "out", tmp_path / "one.yaml"
    checkpoints = out / "seed_3" / "stage_1" / "checkpoint_stage_1"
    config.write_text(yaml.safe_dump(TASK | STAGE_ONE | FEW_SNAPSHOTS))
    options: dict[str, Any] = {"out": out, "seeds": "3", "stage_1_config": config, "methods": "last"}
    compare(str(tmp_path), folder / "two.yaml", **options, at="2,4")
    before = read_checkpoint(full_checkpoints(checkpoints)[2])
    compare(str(tmp_path), folder / "two.yaml", **options, at="2,6")
    found = full_checkpoints(checkpoints)
    assert sorted(found) == [2, 4, 6]
    assert len(library.CheckpointSeries.open(checkpoints / "checkpoint_pca")) == 2 * 6  # also those of the first budget
    assert "warning" not in capsys.readouterr().err
    assert all(np.array_equal(values, before[name]) for name, values in read_checkpoint(found[2]).items())
    with pytest.raises(ConfigError, match="no full checkpoint of epoch 3"):  # it is past that
        compare(str(tmp_path), folder / "two.yaml", **options, at="3,8")
    config.write_text(yaml.safe_dump(TASK | STAGE_ONE | {"clipping": {"norm": 1.0}}))  # snapshots.keep may differ
    with pytest.raises(ConfigError, match=r"--stage-1-config has clipping norm=1.0 .*, but .*stage_1 was trained with"):
        compare(str(tmp_path), folder / "two.yaml", **options, at="2,8")
    assert max(full_checkpoints(checkpoints)) == 6


def test_rows_of_another_run_do_not_mix(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run_3", tmp_path / "run_3")
    options: dict[str, Any] = {"out": tmp_path / "out", "methods": "last"}
    compare("nowhere", folder / "two.yaml", [folder / "run_3"], **options)
    with pytest.raises(ConfigError, match=rf"RUN is '{tmp_path}/run_3', but .* has rows of '{folder}/run_3'"):
        compare("nowhere", folder / "two.yaml", [tmp_path / "run_3"], **options)
    with pytest.raises(ConfigError, match=r"DATA is 'elsewhere', but .* has rows of '.*nowhere'"):
        compare("elsewhere", folder / "two.yaml", [folder / "run_3"], **options)
    with pytest.raises(ConfigError, match=r"of seed 3, which .* has too; give one run a seed"):
        compare("nowhere", folder / "two.yaml", [folder / "run_3", tmp_path / "run_3"], tmp_path / "both")


def test_a_run_without_the_snapshots_of_a_budget_is_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(3)
    one = StageOneConfig.model_validate(TASK | STAGE_ONE | FEW_SNAPSHOTS)
    stage_1_run(one)(tmp_path / "run", False)
    compare("nowhere", folder / "two.yaml", [tmp_path / "run"], tmp_path / "its_own", methods="last", at="2")
    assert "has 1 of the 4 snapshots that it would have had, had it ended at epoch 2" in capsys.readouterr().err


def test_a_run_of_stage_2_is_named_as_such(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint_stage_2").mkdir(parents=True)
    with pytest.raises(ConfigError, match="a run of stage 2; give the folder of the stage 1"):
        compare("nowhere", folder / "two.yaml", [tmp_path / "run"], tmp_path / "out")


def test_other_settings_do_not_mix(folder: Path) -> None:
    compare("nowhere", folder / "two.yaml", [folder / "run_3"], folder / "out", methods="last")
    with pytest.raises(ConfigError, match="other settings"):
        compare("nowhere", folder / "two.yaml", [folder / "run_3"], folder / "out", overrides=["epochs=2"])


def test_an_epoch_that_stage_1_has_not_kept_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no full checkpoint of epoch 3 \(of these epochs: 2, 4\); finish stage 1"):
        compare("nowhere", folder / "two.yaml", [folder / "run_3"], tmp_path / "out", at="3", methods="last")


def test_a_search_without_a_whole_batch_is_refused_and_not_taken_for_its_start(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.batch_size is 10, but there are only 9 images; lower it"):
        compare(
            "a {folder}", folder / "two.yaml", [folder / "run_3"], tmp_path / "out", methods="p_bfgs_val",
            overrides=["data.batch_size=10", "residual=published"],
        )  # fmt: skip


def test_a_stage_1_of_two_ranks_goes_on_with_its_steps(folder: Path, tmp_path: Path) -> None:
    """Their batches are micro-batches here, and config.yaml does not tell the number of ranks."""
    settings = TASK | STAGE_ONE | {"data": TASK["data"] | {"batch_size": 3}, "accumulation": 2}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(settings))
    stage_1(tmp_path, tmp_path / "one.yaml", tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    config = tmp_path / "two" / "config.yaml"
    config.write_text(config.read_text().replace("accumulation: 2\n", "accumulation: 1\n"))
    made = {}
    for name, accumulation in (("one", 2), ("two", 1)):
        library.compare(
            "nowhere", [tmp_path / name], folder / "two.yaml", tmp_path / f"out_{name}",
            methods=["p_bfgs_train", "continued_alone", "plain_to_the_end"],
            overrides=["data.batch_size=3", f"accumulation={accumulation}"],
        )  # fmt: skip
        made[name] = {path.name: path.read_bytes() for path in (tmp_path / f"out_{name}").rglob("*.ckpt")}
    assert len(made["one"]) == 3
    assert made["one"] == made["two"]


def test_what_a_row_needs_is_looked_for_before_the_first(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match="n_components is 9, which needs at least 10 snapshots"):
        compare("no", folder / "two.yaml", [folder / "run_3"], tmp_path / "out", overrides=["n_components=9"])
    ended = tmp_path / "run"
    shutil.copytree(folder / "run_3", ended)
    config = ended / "config.yaml"
    config.write_text(config.read_text().replace("total_epochs: 6", "total_epochs: 4"))
    (checkpoint,) = (ended / "checkpoint_stage_1").glob("network-4_*.ckpt")
    checkpoint.rename(checkpoint.with_name("network-4_999.ckpt"))
    with pytest.raises(ConfigError, match="leaves nothing for residual continued"):
        compare("no", folder / "two.yaml", [ended], tmp_path / "out", methods="last,cooldown")
    with pytest.raises(ConfigError, match="start is 'mean'; a comparison begins at best or last"):
        compare("no", folder / "two.yaml", [ended], tmp_path / "out", overrides=["start=mean"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"RUN\.\.\."),
        ({"runs": [Path("run")]}, "'run', which has no config.yaml"),
        ({"runs": [Path("run")], "methods": "swa,best"}, "'best'; allowed: last, swa"),
        ({"runs": [Path("run")], "at": "20;30"}, "--at is '20;30'"),
        ({"runs": [Path("run")], "at": "0,30"}, "epochs from 1 on"),
        ({"seeds": "1,2"}, "--stage-1-config"),
        ({"seeds": "1;2", "stage_1_config": STAGE_1}, "--seeds is '1;2'"),
        ({"runs": [Path("run")], "config": Path("gone.yaml")}, r"gone\.yaml"),
    ],
)
def test_a_wrong_call_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        compare(**({"data": "nowhere", "config": STAGE_2, "out": tmp_path / "out"} | options))


@pytest.mark.slow
def test_every_method_over_two_seeds_with_stage_1_trained_here(two_stages: TwoStages, tmp_path: Path) -> None:
    config = tmp_path / "stage_1.yaml"
    config.write_text(
        STAGE_1.read_text().replace("epochs: 70 ", "epochs: 3 ").replace("per_epoch: 1", "per_epoch: 12")
        .replace("first_epoch: 31", "first_epoch: 1").replace("total_epochs: 90", "total_epochs: 5")
        .replace("warmup_epochs: 5", "warmup_epochs: 1")
    )  # fmt: skip
    done = dimred(
        "compare", two_stages.data, "--seeds", "1,2", "--stage-1-config", config, "--config", STAGE_2,
        "--out", tmp_path / "out", "--set=epochs=1", "--json", "--at=3,4", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 2 * len(TITLES)
    assert all(row["n_seeds"] == 2 and row["test"]["spread"] is not None for row in rows)
