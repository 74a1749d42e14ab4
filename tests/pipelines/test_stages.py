"""Both stages run whole, as programs."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from dimred.averaging.windows import Window
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, load_config
from dimred.evaluation.averages import SnapshotAverages
from dimred.report.run_page import write_report
from dimred.report.run_record import read_stage_2
from dimred.run_files.metrics_file import read_metrics
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.subspace.basis import load_basis
from tests.helpers.commands import (
    DIGITS,
    N_SNAPSHOTS,
    SHORT,
    TwoStages,
    dimred_here,
    next_lines,
    program,
    run,
)

EPOCHS, STEPS = 2, 9


def test_the_series_is_ordered_by_step_and_holds_the_trainable_weights_only(two_stages: TwoStages) -> None:
    """The last snapshot has the weights of the last full checkpoint."""
    series = CheckpointSeries.open(two_stages.snapshots)
    steps = [entry.step for entry in series.entries]
    assert steps == sorted(set(steps))
    assert len(steps) == N_SNAPSHOTS
    assert steps[11::12] == [37, 74, 111]
    assert series.layout.size == 19954
    checkpoint = read_checkpoint(two_stages.weights)
    for name, value in read_checkpoint(series.paths[-1]).items():
        assert "moving" not in name
        np.testing.assert_array_equal(value, checkpoint[name])


def test_the_resolved_configuration_lies_beside_the_run(two_stages: TwoStages) -> None:
    saved = load_config(StageOneConfig, two_stages.stage_1 / "config.yaml")
    assert saved == load_config(StageOneConfig, DIGITS, [option.removeprefix("--set=") for option in SHORT])


def test_the_printed_commands_run_as_they_are_in_another_folder(two_stages: TwoStages, tmp_path: Path) -> None:
    """The paths have blanks and umlauts. The matrix is there already, so that it is made again by --force."""
    lines = next_lines(two_stages.stage_1_output)
    assert len(lines) == 2
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    before = two_stages.matrix.read_bytes()
    done = run("bash", "-c", f"{lines[0]} --force", cwd=elsewhere, status=0)
    assert f"{two_stages.matrix}: 32 directions from {N_SNAPSHOTS} snapshots" in done.stdout
    assert two_stages.matrix.read_bytes() == before
    done = run("bash", "-c", f"{lines[1]} --dry-run", cwd=elsewhere, status=0)
    assert "node 0 of 1: ranks 0 to 0 of 1\n" in done.stdout
    assert not list(elsewhere.iterdir())
    assert shlex.split(lines[1])[shlex.split(lines[1]).index("--out") + 1] == str(two_stages.folder)


def test_the_result_says_what_was_done(searched: Path) -> None:
    result = StageTwoResult.read(searched / "result.json")
    assert not result.choices
    assert (result.epochs, result.steps) == (EPOCHS, EPOCHS * STEPS)
    assert 0 < result.totals["accepted_steps"] <= result.steps
    assert result.basis["n_snapshots"] == N_SNAPSHOTS
    assert result.basis["n_weights"] == 19954
    assert 0.9 < result.basis["explained_variance"] <= 1


def test_every_step_is_told_and_every_accepted_one_decreased_its_loss_sufficiently(searched: Path) -> None:
    steps = read_metrics(searched / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, EPOCHS * STEPS + 1))
    accepted = [step for step in steps if step["outcome"] == "accepted"]
    assert accepted
    for step in accepted:
        assert step["loss_after"] < step["loss"] + 0.4 * step["step_size"] * step["slope"]
        assert step["moved_inside"] > 0


def test_without_the_residual_the_weights_stay_in_weights_plus_the_span_of_the_basis(
    two_stages: TwoStages, searched: Path
) -> None:
    basis = load_basis(two_stages.matrix)
    final = read_checkpoint(searched / "checkpoint_stage_2" / "resnet_small-final.ckpt")
    begun = basis.layout.flatten(read_checkpoint(two_stages.weights))
    moved = basis.layout.flatten(final).astype(np.float64) - begun
    inside = np.linalg.norm(basis.project(moved))
    assert inside > 1e-3
    assert np.linalg.norm(moved) == pytest.approx(inside, rel=1e-4)


def _is_average(two_stages: TwoStages, weights: dict[str, np.ndarray], name: str) -> bool:
    """Return whether the weights are what the name says: "last", or "uniform of 5 snapshots, steps 10 to 50"."""
    if name == "last":
        last = read_checkpoint(two_stages.weights)
        return all(np.array_equal(last[key], weights[key]) for key in weights if not key.endswith(("mean", "variance")))
    layout = load_basis(two_stages.matrix).layout
    averages = SnapshotAverages(CheckpointSeries.open(two_stages.snapshots), layout)
    first, last = (averages.steps.index(int(step)) for step in re.findall(r"steps (\d+) to (\d+)", name)[0])
    expected = averages.of(Window(first, last + 1, name.partition(" ")[0]))
    return np.array_equal(layout.flatten(weights), expected)


@pytest.mark.slow
def test_a_search_that_accepts_nothing_stops_and_says_why(two_stages: TwoStages, tmp_path: Path) -> None:
    """It starts from the last weights, with a matrix fitted on the way, which must be the one that the command fits."""
    done = program(
        "stage_2",
        two_stages.data,
        two_stages.weights,
        "--config",
        DIGITS,
        "--out",
        tmp_path / "out",
        "--set=search={sigma: 0.999, max_trials: 1, max_rejected_steps: 3}",
        "--set=reestimate_batches=2",
        cwd=tmp_path,
        status=0,
    )
    assert "3 steps in a row were rejected" in done.stdout
    result = StageTwoResult.read(tmp_path / "out" / "result.json")
    assert "max_trials" in result.stopped
    assert result.epochs == result.steps / STEPS < 1  # only what was done counts as cost
    assert (tmp_path / "out" / "pca_mat.npy").read_bytes() == two_stages.matrix.read_bytes()
    last = read_metrics(two_stages.stage_1 / "metrics.jsonl")[-1]["metrics"]["accuracy"]
    assert result.main.by_point["start"]["as_trained"] == last["as_trained"]


@pytest.mark.slow
def test_trainable_averaging_searches_in_the_raw_snapshots(two_stages: TwoStages, tmp_path: Path) -> None:
    program(
        "stage_2",
        two_stages.data,
        two_stages.weights,
        "--config",
        DIGITS,
        "--out",
        tmp_path / "out",
        "--set=epochs=1",
        "--set=search={rule: sgd, basis: snapshots}",
        "--set=reestimate_batches=2",
        cwd=tmp_path,
        status=0,
    )
    shown = dimred_here("show", tmp_path / "out" / "pca_mat.npy", cwd=tmp_path)
    assert "raw snapshots" in shown.stdout
    assert len(read_metrics(tmp_path / "out" / "metrics.jsonl")) == STEPS


@pytest.mark.slow
def test_the_average_is_the_mean_of_the_snapshots_and_needs_its_own_statistics(
    two_stages: TwoStages, tmp_path: Path
) -> None:
    averaged = tmp_path / "average.ckpt"
    made = dimred_here("merge", two_stages.snapshots, "--rest", two_stages.weights, "--out", averaged, cwd=tmp_path)
    worth = f"BatchNorm: 18 statistics are copies from {two_stages.weights}, which do not belong to these"
    assert worth in made.stdout, made.stderr
    done = dimred_here("eval", two_stages.data, averaged, "--config", DIGITS, "--json", cwd=tmp_path, status=0)
    average = json.loads(done.stdout)
    accuracy = average["metrics"]["accuracy"]
    assert accuracy["as_trained"] != accuracy["reestimated"]
    merged = tmp_path / "merged.ckpt"  # the same weights, without statistics
    assert dimred_here("merge", two_stages.snapshots, "--out", merged, cwd=tmp_path).returncode == 0
    done = dimred_here("eval", two_stages.data, merged, "--config", DIGITS, "--json", cwd=tmp_path)
    del accuracy["as_trained"]
    found = json.loads(done.stdout)
    assert found.pop("classes")["statistics"] == "reestimated"
    assert average.pop("classes")["statistics"] == "as_trained"
    assert found == average


@pytest.mark.slow
def test_the_cooldown_takes_over_from_stage_1_and_needs_no_basis(
    two_stages: TwoStages, few_digits: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = program(
        "stage_2",
        few_digits,
        two_stages.weights,
        "--set=method=cooldown",
        "--out",
        out,
        "--set=reestimate_batches=3",
        "--set=data.eval_split=val",
        "--set=data.batch_size=10",
        cwd=tmp_path,
        status=0,
    )
    result = StageTwoResult.read(out / "result.json")
    cooldown = result.cooldown
    assert (cooldown["optimizer"], cooldown["factor"], cooldown["schedule"]) == ("momentum", 0.5, "linear")
    assert cooldown["rate"] == pytest.approx(0.4 * (3 * 37 + 1) / (5 * 37))  # in the middle of the warm-up
    assert (result.epochs, result.steps) == (1, 20)  # 10 % of all passes
    assert "cooldown: momentum from 0.5 times stage 1's rate" in done.stdout
    assert result.basis is None
    assert not (out / "pca_mat.npy").exists()
    losses = {record["name"]: record["loss"] for record in result.choices["kept"].candidates}
    assert list(losses) == ["average", "1"]
    averages = {record["name"]: record["loss"] for record in result.choices["average"].candidates}
    assert losses["average"] == pytest.approx(averages[result.choices["average"].name], rel=1e-5)
    average = read_checkpoint(out / "checkpoint_stage_2" / "resnet_small-average.ckpt")
    assert _is_average(two_stages, average, result.choices["average"].name)
    (tmp_path / "report").mkdir()
    page = write_report(tmp_path / "report", read_stage_2(out))
    assert "momentum, continued from 0.5 times its last rate" in page.read_text()
    final = out / "checkpoint_stage_2" / "resnet_small-final.ckpt"
    for split, says in (("val", True), ("test", False)):
        options = ("--config", "digits", f"--set=data.eval_split={split}")
        done = dimred_here("eval", few_digits, final, *options, cwd=tmp_path)
        assert ("'val' is also the split that chooses" in done.stdout) is says, done.stdout + done.stderr
