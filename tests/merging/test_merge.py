"""``dimred.merge`` with a metric, end to end: planted optima, noise, failures, statistics, and refusals."""

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import CheckpointError, ConfigError, RunError, SearchError, SeriesError
from dimred.io.atomic import remove
from tests.helpers.checkpoint_files import read_file, write_file, write_run
from tests.helpers.commands import dimred_here as command
from tests.merging.problems import METRICS, STATISTICS, N, plant, score_zero


def kept_row(record: dict) -> dict:
    [row] = [row for row in record["table"] if row["kept"]]
    return row


def test_the_window_with_the_optimum_is_kept(workspace: Path) -> None:
    out = workspace / "best.safetensors"
    record = dimred.merge(workspace / "run", out, metric=f"{METRICS}:distance", minimize=True)
    row = kept_row(record)
    assert row == min(record["table"], key=lambda row: row["select"])
    weights = [read_file(workspace / "run" / f"n-{number}.safetensors")["w"] for number in range(N)]
    mean = np.average(weights, axis=0, weights=record["kept"]["coefficients"])
    np.testing.assert_allclose(read_file(out)["w"], mean, rtol=1e-5)
    assert row["test"][0] - 2 == pytest.approx(row["select"][0] - 1)  # the offsets of the splits
    assert json.loads((workspace / "best.safetensors.json").read_text())["kept"]["name"] == row["name"]
    assert record["why"].startswith("the best on 'select'; the metric gives one number")
    assert record["ended"] == "every candidate is scored"
    assert {row["kind"] for row in record["table"]} == {"window", "profile"}


@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1e7)])
def test_one_number_without_splits_keeps_the_best_window_or_profile(tmp_path: Path, seed: int, offset: float) -> None:
    """The noise is the same for the same weights, so the candidate fitted to it stays the best.

    An offset of all scores, such as the constant of a likelihood, changes nothing.
    """
    plant(tmp_path / "run")
    calls = []

    def noise(tensors: dict[str, np.ndarray]) -> float:
        draw = np.random.default_rng([seed, zlib.crc32(tensors["w"].tobytes())]).standard_normal()
        calls.append(offset + float(draw))
        return calls[-1]

    record = dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", metric=noise, minimize=True)
    assert kept_row(record)["kind"] in ("window", "profile")
    assert kept_row(record)["search"][0] == min(calls)
    assert len(calls) == record["evaluations"]  # none is asked twice
    assert record["why"] == (
        "the best on 'search'; the metric gives one number, so a difference can't be told from chance; let it return "
        "one number for each sample, or (number, standard error)"
    )


@pytest.mark.parametrize("likes_the_last", ["search", "select and test"])
def test_the_last_checkpoint_is_scored_on_select_and_test_whatever_search_thought_of_it(
    workspace: Path, likes_the_last: str
) -> None:
    newest = read_file(workspace / "run" / f"n-{N - 1}.safetensors")["w"]

    def score(tensors: dict[str, np.ndarray], split: str) -> float:
        distance = float(np.linalg.norm(tensors["w"] - newest))
        return distance if split in likes_the_last else -distance

    record = dimred.merge(workspace / "run", workspace / "x.safetensors", metric=score, minimize=True)
    last, kept = "the snapshot of step 9", record["kept"]["name"]
    assert (kept == last) == (likes_the_last != "search")
    assert [row["name"] for row in record["table"] if "test" in row] == list(dict.fromkeys([kept, last]))


def test_statistics_of_their_own_and_without_side_by_side(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 4)
    out = tmp_path / "best.safetensors"
    record = dimred.merge(tmp_path / "run", out, metric=f"{STATISTICS}:score", minimize=True, budget=12)
    without = next(row for row in record["table"] if row["name"].endswith("statistics not re-estimated"))
    assert kept_row(record)["select"][0] == kept_row(record)["test"][0] == 0
    assert min(without["select"][0], without["test"][0]) > 0.1
    assert "re-estimated" in record["batch_norm"]
    result = read_file(out)
    np.testing.assert_array_equal(result["bn.running_mean"], result["fc.weight"][:7, 0])


def test_a_failure_ends_the_merge_and_resume_goes_on_with_the_scores_before_it(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    out, scored = workspace / "x.safetensors", []

    def score(tensors: dict[str, np.ndarray]) -> float:
        scored.append(tensors["w"].tobytes())
        if len(scored) == 4:
            raise ValueError("a bad batch")
        return float(np.square(tensors["w"]).sum())

    options = {"metric": score, "minimize": True}
    words = r"failed for uniform of 5 snapshots, steps 5 to 9 on 'search': ValueError: a bad batch; 3 scores stay"
    with pytest.raises(SearchError, match=words):
        dimred.merge(workspace / "run", out, **options)
    assert not out.exists()
    with pytest.raises(RunError, match=r"scores\.jsonl has 3 scores of an earlier call; .* with resume=True"):
        dimred.merge(workspace / "run", out, **options)
    caplog.clear()
    record = dimred.merge(workspace / "run", out, **options, resume=True)
    assert "kept from an earlier call: 3 scores" in caplog.messages
    assert record["evaluations"] == len({*scored}) == len(scored) - 1  # none but the failed one is asked twice


def test_a_metric_that_fails_at_once_leaves_nothing_to_resume(workspace: Path) -> None:
    out = workspace / "x.safetensors"
    for _ in range(2):  # the same command begins anew, so that a mended metric is called again
        with pytest.raises(SearchError) as error:
            dimred.merge(workspace / "run", out, metric=f"{METRICS}:raises", maximize=True)
        assert str(error.value) == (
            "the metric failed for the snapshot of step 9 on 'search': RuntimeError: no such data set (see "
            f"{workspace / 'x.safetensors.merge' / 'metric.log'})"
        )
        assert not out.exists()


def test_scores_of_a_helper_that_has_changed_are_not_taken_over_unless_asked(tmp_path: Path) -> None:
    """A lambda or a data file that has changed is such a case, too; a metric that was mended may be resumed with."""
    plant(tmp_path / "run")
    (tmp_path / "metric.py").write_text("from helper import VALUE\ndef score(candidate):\n    return VALUE\n")
    options = {"metric": f"{tmp_path}/metric.py:score", "minimize": True, "budget": 3}
    values = []
    # Python tells a changed file from its bytecode by size and second, so that the sizes differ.
    for value, resume in ((0.0, False), (3.25, True), (3.25, False)):
        (tmp_path / "helper.py").write_text(f"VALUE = {value}\n")
        with (tmp_path / "metric.py").open("a") as file:
            file.write("# mended\n")
        if (tmp_path / "x.safetensors").exists():
            remove(tmp_path / "x.safetensors")
            remove(tmp_path / "x.safetensors.json")
            with pytest.raises(RunError, match="has 3 scores of an earlier call"):
                dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", **options)
        if not resume:
            remove(tmp_path / "x.safetensors.merge")
        record = dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", **options, resume=resume)
        values.append(kept_row(record)["search"][0])
    assert values == [0, 0, 3.25]


def test_each_candidate_has_an_absolute_path_of_its_own_and_a_metric_may_leave_the_folder(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    paths = []

    def score(candidate: str) -> float:
        os.chdir("/")
        paths.append(Path(candidate))
        return float(read_file(Path(candidate))["w"][0])

    dimred.merge("run", "x.safetensors", metric=score, minimize=True)
    assert len({*paths}) == len(paths) > 10
    assert all(path.is_absolute() and not path.exists() for path in paths)
    process = command("merge", "run", "--metric", f"{METRICS}:leaves", "--minimize", "--out", "y.safetensors")
    assert process.returncode == 0, process.stderr
    assert read_file(workspace / "x.safetensors")["w"][0] == read_file(workspace / "y.safetensors")["w"][0]


def test_equal_scores_of_all_candidates_are_told(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, metric in enumerate(
        (score_zero, lambda candidate: len(candidate) and np.random.default_rng().random())
    ):
        dimred.merge(workspace / "run", workspace / f"{number}.safetensors", metric=metric, minimize=True)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(":")[0].split(maxsplit=2)[2] for line in lines] == ["candidates have the same score"]


def test_another_number_of_samples_than_before_ends_the_merge(tmp_path: Path) -> None:
    plant(tmp_path / "run")
    counts = iter([5, 5, 4])

    def losses(tensors: dict[str, np.ndarray]) -> list[float]:
        return [float(np.square(tensors["w"]).mean()) + number for number in range(next(counts))]

    with pytest.raises(SearchError, match="returned 4 samples, but 5 for an earlier candidate"):
        dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", metric=losses, minimize=True)
    assert not (tmp_path / "x.safetensors").exists()


def test_the_table_and_the_json(workspace: Path) -> None:
    arguments = ["merge", workspace / "run", "--metric", f"{METRICS}:distance", "--minimize", "--budget", "8"]
    process = command(*arguments, "--out", workspace / "a.safetensors")
    lines = process.stdout.splitlines()
    assert lines[0].split() == ["checkpoint", "step", "coefficient"]
    assert [line.split()[1] for line in lines[1 : 1 + N]] == [str(step) for step in range(N)]
    lines = lines[1 + N :]
    assert lines[0].split() == ["kept", "kind", "candidate", "search", "select", "test"]
    assert sum(line.startswith("*") for line in lines) == 1
    assert "evaluations; the budget is spent" in process.stdout
    lines = process.stderr.splitlines()
    order = [f"  {number}  run/n-{number}.safetensors" for number in range(N)]
    assert lines[: 1 + N] == [f"{N} checkpoints by step, oldest first:", *order]
    assert lines[1 + N].startswith("1 search window the snapshot of step 9: ")
    process = command(*arguments, "--out", workspace / "b.safetensors", "--json")
    assert json.loads(process.stdout) == json.loads((workspace / "b.safetensors.json").read_text())
    process = command(
        "merge", workspace / "run", "--last", "3", "--profile", "linear", "--out", workspace / "c.safetensors"
    )
    assert [line.split()[1:] for line in process.stdout.splitlines()[1:4]] == [
        ["7", "0.1667"],
        ["8", "0.3333"],
        ["9", "0.5"],
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resume": True}, "minimize=, maximize=, budget= and resume= need metric="),
        ({"budget": 3}, "minimize=, maximize=, budget= and resume= need metric="),
        ({"minimize": True}, "minimize=, maximize=, budget= and resume= need metric="),
        ({"metric": score_zero}, "say which score is better"),
        ({"metric": score_zero, "minimize": True, "maximize": True}, "say which score is better"),
        ({"metric": score_zero, "minimize": True, "profile": "uniform"}, "profile is 'uniform', but the metric"),
        ({"metric": score_zero, "minimize": True, "budget": 0}, "budget is 0"),
        ({"metric": score_zero, "minimize": True, "timeout": 0}, "timeout is 0"),
        ({"rest": 3}, "rest is 3; it must be the path of a checkpoint"),
        ({"names_from": ["net.ckpt"]}, "names_from is ['net.ckpt']; it must be the path of a checkpoint"),
        ({"metric": score_zero, "minimize": True, "last": 1}, "is the only checkpoint that is left; to choose, a"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict, words: str) -> None:
    plant(tmp_path / "run")
    with pytest.raises((ConfigError, SeriesError)) as error:
        dimred.merge(tmp_path / "run", tmp_path / "x.safetensors", **options)
    assert words in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_checkpoint_that_is_replaced_while_it_is_scored_leaves_no_result(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_file(tmp_path / f"net-{step}.safetensors", {"net.w": np.full((2, 2), step, np.float32)})

    def score(candidate: Path) -> float:
        write_file(tmp_path / "net-2.safetensors", {"net.w": np.full((2, 2), 7, np.float32)})
        return 1.0

    inputs = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"net-2\.safetensors was written or replaced while it was read"):
        dimred.merge(inputs, tmp_path / "mean.safetensors", metric=score, minimize=True)
    assert not (tmp_path / "mean.safetensors").exists()
