"""``dimred.merge`` end to end: planted problems, useless metrics, failures, statistics, and what is refused."""

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import ConfigError, SearchError, SeriesError
from tests.helpers.checkpoint_files import read_file, write_file, write_run
from tests.helpers.commands import dimred as command
from tests.merging.problems import METRICS, N, plant, score_zero

STATISTICS = Path(__file__).with_name("statistics_metric.py")


def by_kind(record: dict) -> dict[str, float]:
    """The best score on select of each kind."""
    found: dict[str, float] = {}
    for row in record["table"]:
        found.setdefault(row["kind"], row["select"][0])
    return found


def test_the_search_finds_what_window_profile_and_soup_cannot(planted: Path) -> None:
    out = planted / "best.safetensors"
    record = dimred.merge(planted / "run", out, metric=f"{METRICS}:distance", minimize=True, budget=250)
    best = by_kind(record)
    assert record["kept"]["kind"] == "search"
    assert best["search"] - 1 < 0.1  # the offset of the split
    assert min(best["window"], best["soup"]) - 1 > 0.5
    weights = read_file(out)["w"]
    assert np.linalg.norm(weights - np.load(planted / "optimum.npy")) < 0.1
    assert [row["kept"] for row in record["table"]].count(True) == 1
    kept = next(row for row in record["table"] if row["kept"])
    assert kept["test"][0] - 2 == pytest.approx(kept["select"][0] - 1)
    assert json.loads((planted / "best.safetensors.json").read_text())["kept"]["name"] == kept["name"]


@pytest.mark.parametrize("seed", range(4))
def test_with_a_useless_metric_the_plain_candidate_is_kept(tmp_path: Path, seed: int) -> None:
    plant(tmp_path / "run")
    rng = np.random.default_rng(seed)

    def noise(candidate: str, split: str) -> list[float]:
        return rng.standard_normal(100).tolist()

    record = dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", metric=noise, maximize=True, budget=70)
    assert record["kept"]["kind"] in ("window", "profile")
    assert record["why"] == "no soup or point of the search was better on select by more than 2 standard errors"
    best = by_kind(record)
    assert max(best.values()) == record["table"][0]["select"][0]


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_seen_without_being_told(tmp_path: Path, seed: int) -> None:
    """A metric that gives no error: how much the finalists move from one call to the next is one."""
    plant(tmp_path / "run")
    rng = np.random.default_rng(seed)
    record = dimred.merge(
        tmp_path / "run",
        tmp_path / "x.safetensors",
        metric=lambda path: rng.standard_normal(),
        minimize=True,
        budget=60,
    )
    assert record["kept"]["kind"] in ("window", "profile")


def test_what_is_kept_is_never_worse_on_select_than_the_best_plain_one(planted: Path) -> None:
    """Search and select disagree: what the search finds is worse on select."""
    target = plant(planted / "other", seed=1)

    def score(tensors: dict[str, np.ndarray], split: str) -> float:
        wanted = np.load(planted / "optimum.npy") if split == "search" else target
        return float(np.linalg.norm(tensors["w"] - wanted))

    record = dimred.merge(planted / "run", planted / "x.safetensors", metric=score, minimize=True, budget=120)
    kept = next(row for row in record["table"] if row["kept"])
    plain = [row["select"][0] for row in record["table"] if row["kind"] in ("window", "profile")]
    assert kept["select"][0] <= min(plain)


def test_the_last_checkpoint_is_in_the_final_whatever_search_thought_of_it(planted: Path) -> None:
    newest = read_file(planted / "run" / f"n-{N - 1}.safetensors")["w"]

    def score(tensors: dict[str, np.ndarray], split: str) -> float:
        distance = float(np.linalg.norm(tensors["w"] - newest))
        return -distance if split == "search" else distance

    record = dimred.merge(planted / "run", planted / "x.safetensors", metric=score, minimize=True, budget=120)
    assert record["table"][0]["name"] == record["kept"]["name"] == "the last checkpoint"
    np.testing.assert_array_equal(read_file(planted / "x.safetensors")["w"], newest)


def test_statistics_of_their_own_and_without_side_by_side(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 4)
    out = tmp_path / "best.safetensors"
    record = dimred.merge(tmp_path / "run", out, metric=f"{STATISTICS}:score", minimize=True, budget=12)
    with_hook = next(row for row in record["table"] if row["kept"])
    without = next(row for row in record["table"] if row["name"].endswith("statistics not re-estimated"))
    assert with_hook["select"][0] == with_hook["test"][0] == 0
    assert without["select"][0] > 0.1
    assert without["test"][0] > 0.1
    assert "re-estimated" in record["batch_norm"]
    found = read_file(out)
    np.testing.assert_array_equal(found["bn.running_mean"], found["fc.weight"][:7, 0])


def test_without_the_hook_the_record_says_that_statistics_belong_to_no_network(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    score = lambda tensors: float(tensors["fc.weight"][0, 0])  # noqa: E731
    record = dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", metric=score, maximize=True, budget=9)
    assert record["batch_norm"].startswith(
        "2 statistics are averages, which do not belong to these weights: re-estimate them"
    )
    assert "dimred eval" in record["batch_norm"]
    assert "reestimate(candidate)" in record["batch_norm"]


def test_single_failures_are_named_and_survived(planted: Path) -> None:
    out = planted / "x.safetensors"
    done = command(
        "merge", planted / "run", "--metric", f"{METRICS}:sometimes", "--maximize", "--budget", "40", "--out", out
    )
    assert done.returncode == 0, done.stderr
    assert "failed: ValueError: a bad batch" in done.stderr
    lines = (planted / "x.safetensors.merge" / "trials.jsonl").read_text().splitlines()[1:]
    failed = [json.loads(line) for line in lines if json.loads(line)["score"] is None]
    assert 0 < len(failed) < len(lines) / 2
    assert failed[0]["failed"] == "ValueError: a bad batch"


@pytest.mark.parametrize("name", ["raises", "text", "not_finite"])
def test_a_metric_that_always_fails_ends_it(planted: Path, name: str) -> None:
    out = planted / "x.safetensors"
    with pytest.raises(SearchError) as failed:
        dimred.merge(planted / "run", out, metric=f"{METRICS}:{name}", maximize=True)
    assert str(failed.value).startswith("the metric failed on the first 3 candidates: ")
    assert "\n" not in str(failed.value)
    assert str(failed.value).endswith(f" (see {planted / 'x.safetensors.merge' / 'metric.log'})")
    assert not out.exists()
    # the same command, with the metric mended, begins anew
    with pytest.raises(SearchError):
        dimred.merge(planted / "run", out, metric=f"{METRICS}:{name}", maximize=True)
    assert len((planted / "x.safetensors.merge" / "metric.log").read_text()) >= 0


def test_a_budget_that_ends_before_anything_is_scored(planted: Path) -> None:
    with pytest.raises(SearchError, match="the metric failed on every plain candidate on 'search'"):
        dimred.merge(planted / "run", planted / "x.safetensors", metric=lambda path: None, maximize=True, budget=2)


def test_a_command_as_metric_in_another_layout(tmp_path: Path) -> None:
    written = write_run(tmp_path / "run", 3, sharded=True)
    code = "import pathlib, sys; print(len(list(pathlib.Path(sys.argv[1]).glob('*.safetensors'))))"
    done = command(
        "merge", tmp_path / "run", "--metric-command", f'{sys.executable} -c "{code}" {{}}', "--maximize",
        "--budget", "8", "--out", tmp_path / "best",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2.0000" in done.stdout
    assert sorted(path.name for path in (tmp_path / "best").iterdir())[0] == "config.json"
    assert len(written) == 3


def test_the_table_and_the_json(planted: Path) -> None:
    arguments = ["merge", planted / "run", "--metric", f"{METRICS}:distance", "--minimize", "--budget", "30"]
    done = command(*arguments, "--out", planted / "a.safetensors")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["checkpoint", "step", "coefficient"]
    assert [line.split()[1] for line in lines[1 : 1 + N]] == [str(step) for step in range(N)]
    lines = lines[1 + N :]
    assert lines[0].split() == ["kept", "kind", "candidate", "search", "select", "test"]
    assert sum(line.startswith("*") for line in lines) == 1
    assert "evaluations; the budget is spent" in done.stdout
    order, first, *_ = done.stderr.splitlines()
    assert order.startswith("10 checkpoints, the oldest first: 0 (n-0.safetensors), 1 (n-1.safetensors), 2 (")
    assert first.startswith("1/30 window 9: ")
    done = command(*arguments, "--out", planted / "b.safetensors", "--json")
    record = json.loads(done.stdout)
    assert record["format"] == "dimred merge"
    assert [one["step"] for one in record["checkpoints"]] == list(range(N))
    assert record["order"] == "step"
    assert {"cmaes", "dimred", "numpy", "safetensors", "python"} <= record["versions"].keys()
    done = command("merge", planted / "run", "--last", "3", "--profile", "linear", "--out", planted / "c.safetensors")
    assert [line.split()[1:] for line in done.stdout.splitlines()[1:4]] == [
        ["7", "0.1667"], ["8", "0.3333"], ["9", "0.5"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minimize": True}, "--minimize and --maximize need --metric"),
        ({"metric": score_zero}, "say which is better"),
        ({"metric": score_zero, "minimize": True, "maximize": True}, "say which is better"),
        ({"metric": score_zero, "minimize": True, "profile": "uniform"}, "--profile is 'uniform'; with a metric"),
        ({"metric": score_zero, "minimize": True, "budget": 0}, "--budget is 0"),
        ({"metric": score_zero, "minimize": True, "timeout": 0}, "--timeout is 0"),
        ({"metric": score_zero, "minimize": True, "bound": 0}, "--bound is 0"),
        ({"metric": score_zero, "metric_command": "x {}", "minimize": True}, "can't both be given"),
        ({"metric": "gone.py:score", "minimize": True}, "--metric is 'gone.py:score'"),
        ({"metric_command": "x", "minimize": True}, "--metric-command is 'x'; put {} where the candidate's path"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: dict, said: str) -> None:
    plant(tmp_path / "run")
    with pytest.raises(ConfigError) as refused:
        dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", **options)
    assert said in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_one_checkpoint_is_nothing_to_search_in(planted: Path) -> None:
    with pytest.raises(SeriesError, match=r"n-9\.safetensors is the only checkpoint that is left; a search needs two"):
        dimred.merge(planted / "run", planted / "x.safetensors", metric=lambda path: None, minimize=True, last=1)


def test_equal_checkpoints_are_no_accident(tmp_path: Path) -> None:
    for number in range(3):
        write_file(tmp_path / "run" / f"n-{number}.safetensors", {"w": np.ones(5, np.float32)})
    record = dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", metric=score_zero, minimize=True, budget=30)
    assert record["ended"] == "the checkpoints are all equal"
    assert not math.isnan(record["table"][0]["select"][0])
    shutil.rmtree(tmp_path / "run")
