"""``dimred.merge`` end to end: planted problems, useless metrics, kills, failures, statistics."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import ConfigError, FaultError, RunError, SearchError, SeriesError, StoppedError
from dimred.files.lock import FolderLock
from tests.helpers.checkpoint_files import read_file, write_file, write_run
from tests.helpers.commands import REPOSITORY
from tests.helpers.commands import dimred as command

METRICS = Path(__file__).with_name("metrics.py")
STATISTICS = Path(__file__).with_name("statistics_metric.py")
N = 10


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def plant(folder: Path, seed: int = 0) -> np.ndarray:
    """Checkpoints around an optimum, which no average of some of them comes close to; the optimum."""
    rng = np.random.default_rng(seed)
    optimum = rng.standard_normal(500)
    directions, _ = np.linalg.qr(rng.standard_normal((500, 4)))
    for number in range(N):
        point = rng.standard_normal(4) * [3, 2, 1.5, 1] + [2.0, -2.0, 1.5, 1.0]
        write_file(folder / f"n-{number}.safetensors", {"w": (optimum + directions @ point).astype(np.float32)})
    return optimum


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of checkpoints; their optimum is known to the metric ``distance``."""
    np.save(tmp_path / "optimum.npy", plant(tmp_path / "run"))
    monkeypatch.setenv("OPTIMUM", str(tmp_path / "optimum.npy"))
    return tmp_path


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


def test_the_kth_trial_is_the_same_after_a_kill(planted: Path) -> None:
    """SIGKILL in the middle, and again; the file of trials and the result are those of a run that was left alone."""
    arguments = ["merge", planted / "run", "--metric", f"{METRICS}:distance", "--minimize", "--budget", "80"]
    whole = planted / "whole.safetensors"
    assert command(*arguments, "--out", whole).returncode == 0
    out = planted / "killed.safetensors"
    trials = planted / "killed.safetensors.merge" / "trials.jsonl"
    for lines in (15, 60):
        program = [Path(sys.executable).with_name("dimred"), *arguments, "--out", out]
        with subprocess.Popen(list(map(str, program)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 120
            while not (trials.exists() and trials.read_bytes().count(b"\n") >= lines):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    assert not out.exists()
    with trials.open("ab") as file:
        file.write(b'{"number": 61, "candi')  # half a line
    done = command(*arguments, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == whole.read_bytes()

    def content(path: Path) -> list[dict]:
        lines = [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]

    assert content(trials.parent) == content(planted / "whole.safetensors.merge")
    record, expected = json.loads(done.stdout), json.loads((planted / "whole.safetensors.json").read_text())
    assert record == expected
    assert sorted(path.name for path in trials.parent.iterdir()) == sorted(
        path.name for path in (planted / "whole.safetensors.merge").iterdir()
    )


def test_a_larger_budget_goes_on_from_a_smaller_one(planted: Path) -> None:
    calls = []

    def score(tensors: dict[str, np.ndarray]) -> float:
        calls.append(1)
        return float(np.linalg.norm(tensors["w"] - np.load(planted / "optimum.npy")))

    out = planted / "x.safetensors"
    dimred.merge(planted / "run", out, metric=score, minimize=True, budget=60)
    first = len(calls)
    out.unlink()
    Path(f"{out}.json").unlink()
    record = dimred.merge(planted / "run", out, metric=score, minimize=True, budget=100)
    assert len(calls) <= first + 40 + 8
    assert record["evaluations"] > 100


def test_ctrl_c_leaves_the_best_so_far_and_goes_on(planted: Path) -> None:
    optimum = np.load(planted / "optimum.npy")
    stop_at = [45]

    def score(tensors: dict[str, np.ndarray]) -> float:
        stop_at[0] -= 1
        if stop_at[0] == 0:
            raise KeyboardInterrupt
        return float(np.linalg.norm(tensors["w"] - optimum))

    out = planted / "x.safetensors"
    with pytest.raises(StoppedError, match=r"stopped by ctrl-C; the best so far is in .*x\.safetensors"):
        dimred.merge(planted / "run", out, metric=score, minimize=True, budget=100)
    record = json.loads((planted / "x.safetensors.json").read_text())
    assert record["interrupted"]
    lines = (planted / "x.safetensors.merge" / "trials.jsonl").read_text().splitlines()[1:]
    scores = [json.loads(line)["score"]["value"] for line in lines]
    assert len(scores) == 44
    assert np.linalg.norm(read_file(out)["w"] - optimum) == pytest.approx(min(scores))
    again = dimred.merge(planted / "run", out, metric=score, minimize=True, budget=100)
    assert not again["interrupted"]
    assert np.linalg.norm(read_file(out)["w"] - optimum) < min(scores)
    with pytest.raises(ConfigError, match="exists already"):
        dimred.merge(planted / "run", out, metric=score, minimize=True, budget=100)


def test_ctrl_c_in_a_terminal_reaches_only_us(planted: Path) -> None:
    """The metric's process is in a session of its own: it does not die of the same ctrl-C, and is ended with us."""
    out = planted / "x.safetensors"
    trials = planted / "x.safetensors.merge" / "trials.jsonl"
    program = [Path(sys.executable).with_name("dimred"), "merge", planted / "run", "--metric", f"{METRICS}:distance"]
    program += ["--minimize", "--out", out]
    with subprocess.Popen(
        list(map(str, program)), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not (trials.exists() and trials.read_bytes().count(b"\n") >= 20):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        f"error: stopped by ctrl-C; the best so far is in {out}; the same command goes on"
    )
    assert out.exists()
    assert '"failed": null' in trials.read_text().splitlines()[-1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_that_meets_a_finaliser_is_not_lost(planted: Path) -> None:
    """Python prints an exception of a finaliser, and goes on."""
    calls = [0]

    class Finaliser:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)

    def score(candidate: str) -> float:
        calls[0] += 1
        if calls[0] == 4:
            Finaliser()
        return float(calls[0])

    with pytest.raises(StoppedError, match=r"the best so far is in .*x\.safetensors"):
        dimred.merge(planted / "run", planted / "x.safetensors", metric=score, minimize=True, budget=20)
    assert calls == [4]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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


def score_zero(candidate: str) -> float:
    return 0.0


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 2}, "of a search with another seed: 1, not 2;"),
        ({"minimize": False, "maximize": True}, "of a search with another better: 'lower', not 'higher'"),
        ({"last": 5}, "of a search with another digest of the checkpoints: '"),
    ],
)
def test_trials_of_another_search_are_not_mixed_in(planted: Path, change: dict, said: str) -> None:
    out = planted / "x.safetensors"
    same = {"metric": score_zero, "minimize": True, "budget": 5}
    dimred.merge(planted / "run", out, **same)
    out.unlink()
    Path(f"{out}.json").unlink()
    with pytest.raises(RunError) as refused:
        dimred.merge(planted / "run", out, **(same | change))
    assert said in str(refused.value)


def test_two_processes_do_not_write_the_same_trials(planted: Path) -> None:
    out = planted / "x.safetensors"

    def score(candidate: str) -> float:
        with pytest.raises(RunError, match=r"^--out is '.*x\.safetensors', where process \d+ on .* is at work"):
            dimred.merge(planted / "run", out, metric=score_zero, minimize=True)
        assert Path(candidate).exists()
        return 0.0

    dimred.merge(planted / "run", out, metric=score, minimize=True, budget=3)


def test_a_damaged_file_of_trials_is_named(planted: Path) -> None:
    out = planted / "x.safetensors"
    dimred.merge(planted / "run", out, metric=score_zero, minimize=True, budget=5)
    out.unlink()
    Path(f"{out}.json").unlink()
    trials = planted / "x.safetensors.merge" / "trials.jsonl"
    trials.write_text(trials.read_text().replace('"candidate"', '"candidates"', 1))
    with pytest.raises(RunError, match=r"trials\.jsonl is damaged .*; move it away"):
        dimred.merge(planted / "run", out, metric=score_zero, minimize=True, budget=5)


def test_a_disk_that_is_full_in_the_middle(planted: Path) -> None:
    """The scratch folder goes away: a fault, not a failed trial; what was scored is kept."""
    out = planted / "x.safetensors"
    count = [0]

    def score(tensors: dict[str, np.ndarray]) -> float:
        count[0] += 1
        if count[0] == 5:
            (planted / "x.safetensors.merge" / "candidate.safetensors").unlink()
            (planted / "x.safetensors.merge").rename(planted / "gone")
        return float(tensors["w"][0])

    with pytest.raises(FaultError, match="can't be written"):
        dimred.merge(planted / "run", out, metric=score, maximize=True, budget=20)
    assert not out.exists()
    (planted / "gone").rename(planted / "x.safetensors.merge")
    dimred.merge(planted / "run", out, metric=score, maximize=True, budget=20)
    assert count[0] < 40


def test_a_place_that_cannot_be_written_to_is_a_fault(planted: Path) -> None:
    out = planted / "x.safetensors"
    Path(f"{out}.merge").touch()
    with pytest.raises(
        FaultError, match=r"^--out is '.*x\.safetensors', which can't be written \(.*x\.safetensors\.merge"
    ):
        dimred.merge(planted / "run", out, metric=score_zero, minimize=True)
    longest = planted / f"{'n' * 243}.safetensors"  # there is no room for the ending of the record
    for options in ({}, {"metric": score_zero, "minimize": True}):
        with pytest.raises(FaultError, match="File name too long"):
            dimred.merge(planted / "run", longest, **options)
    assert not longest.exists()


def test_while_another_search_is_at_work_no_metric_is_started(planted: Path) -> None:
    out = planted / "x.safetensors"
    with (
        FolderLock(planted / "x.safetensors.merge", "--out is x"),
        pytest.raises(RunError, match=f"process {os.getpid()} on .* is at work"),
    ):
        dimred.merge(planted / "run", out, metric=f"{METRICS}:distance", minimize=True)
    assert not (planted / "x.safetensors.merge" / "metric.log").exists()


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
