"""``dimred compare`` from a finished stage 1: who is judged on what, at which cost."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.helpers.commands import STAGE_1, STAGE_2, TwoStages, dimred

PASSES = 74 * 64 / 4788  # of the training split in one epoch, its remainder dropped


def compared(done) -> dict[str, dict]:
    assert done.returncode == 0, done.stderr
    return {row["method"]: row for row in json.loads(done.stdout)["rows"]}


@pytest.fixture(scope="module")
def call(two_stages: TwoStages, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    out = tmp_path_factory.mktemp("compared") / "out"
    return (
        "compare", two_stages.data, two_stages.stage_1, "--config", STAGE_2, "--out", out, "--set=epochs=1",
        "--set=reestimate_batches=3", "--methods", "last,lawa,swa,p_bfgs_train,p_bfgs_val,cooldown", "--json",
    )  # fmt: skip


def test_methods_from_one_stage_1(call: tuple[object, ...], two_stages: TwoStages, tmp_path: Path) -> None:
    done = dimred(*call, cwd=tmp_path)
    rows = compared(done)
    assert done.stderr.count("seed 1: basis (pca)\n") == 1  # for both searches
    reported = re.search(r"\{'Accuracy': (0\.\d+)\}", two_stages.stage_1_output)
    assert reported
    assert rows["last"]["test"]["mean"] == float(reported[1])
    assert (rows["last"]["epochs"], rows["cooldown"]["epochs"], rows["p_bfgs_train"]["epochs"]) == (3, 4, 4)
    assert rows["swa"]["forward_epochs"] == rows["swa"]["backward_epochs"] == 0
    assert rows["cooldown"]["forward_epochs"] == rows["cooldown"]["backward_epochs"] == pytest.approx(PASSES)
    assert rows["p_bfgs_train"]["backward_epochs"] == pytest.approx(18 * 256 / 4788)
    # choosing costs: two points on val, and the start's statistics; a trial at least for each step
    assert rows["p_bfgs_train"]["forward_epochs"] >= (2 * 18 * 256 + 2 * 1000 + 3 * 256) / 4788
    assert rows["lawa"]["chosen"][0] in {"k = 3", "k = 5", "k = 10", "k = 20"}
    assert rows["lawa"]["forward_epochs"] == pytest.approx(4 * (3 * 256 + 1000) / 4788)
    assert 0.2 < rows["cooldown"]["test"]["mean"] < 0.9
    # averaged weights need statistics of their own; these few epochs move fast, so theirs are far off
    assert rows["swa"]["test_reestimated"]["mean"] > rows["swa"]["test"]["mean"]


def test_what_is_there_is_not_run_again(call: tuple[object, ...], tmp_path: Path) -> None:
    out = Path(str(call[call.index("--out") + 1]))
    seed = out / "seed_1"
    (seed / "swa.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in seed.glob("*.json")}
    done = dimred(*call, cwd=tmp_path)
    assert "swa" in compared(done)
    assert re.findall(r"^seed 1: (\w+)$", done.stderr, re.MULTILINE) == ["swa"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (out / "compare.md").read_text().count("\n") == 2 + 6


def test_other_settings_do_not_mix(call: tuple[object, ...], tmp_path: Path) -> None:
    done = dimred(*call, "--set=epochs=2", cwd=tmp_path)
    assert done.returncode == 2
    assert "other settings" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "--config", STAGE_2), "RUN"),
        (("nowhere", "run", "--config", STAGE_2), "'run', which has no config.yaml"),
        (("nowhere", "run", "--config", STAGE_2, "--methods", "swa,best"), "'best'; allowed: last, ema"),
        (("nowhere", "--config", STAGE_2, "--seeds", "1,2"), "--stage-1-config"),
        (("nowhere", "--config", STAGE_2, "--seeds", "1;2", "--stage-1-config", STAGE_1), "'1;2'"),
        (("nowhere", "run", "--config", "gone.yaml"), "gone.yaml"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: tuple[object, ...], said: str, tmp_path: Path) -> None:
    done = dimred("compare", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_an_unfinished_stage_1_is_refused(two_stages: TwoStages, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(two_stages.stage_1, run)
    config = run / "config.yaml"
    config.write_text(re.sub(r"^epochs: 3$", "epochs: 4", config.read_text(), flags=re.MULTILINE))
    done = dimred("compare", two_stages.data, run, "--config", STAGE_2, "--methods", "last", cwd=tmp_path)
    assert done.returncode == 2
    assert "is of epoch 3 of 4; finish stage 1 first" in done.stderr


@pytest.mark.slow
def test_every_method_over_two_seeds_with_stage_1_trained_here(two_stages: TwoStages, tmp_path: Path) -> None:
    config = tmp_path / "stage_1.yaml"
    config.write_text(
        STAGE_1.read_text().replace("epochs: 70 ", "epochs: 3 ").replace("per_epoch: 1", "per_epoch: 12")
        .replace("first_epoch: 31", "first_epoch: 1").replace("total_epochs: 90", "total_epochs: 5")
        .replace("warmup_epochs: 5", "warmup_epochs: 1")
    )  # fmt: skip

    rows = compared(
        dimred("compare", two_stages.data, "--seeds", "1,2", "--stage-1-config", config, "--config", STAGE_2,
               "--out", tmp_path / "out", "--set=epochs=1", "--json", cwd=tmp_path)
    )  # fmt: skip
    assert len(rows) == 12
    assert all(row["n_seeds"] == 2 and row["test"]["spread"] is not None for row in rows.values())
    assert rows["plain_to_the_end"]["backward_epochs"] == pytest.approx(2 * PASSES)
    assert rows["ema"]["forward_epochs"] > 0
