"""What a report reads of a run: gaps in its metric, and the basis that its search had."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import CheckpointError
from dimred.io.metric import ACCURACY, AS_TRAINED
from dimred.io.stage_two_result import MetricResult
from dimred.report.record import on_equal_terms, read_stage_1, read_stage_2
from dimred.subspace.fit import fit_basis
from tests.helpers.run_files import accuracy, write_run


def test_a_metric_that_was_not_finite_at_one_point_is_a_gap(tmp_path: Path) -> None:
    record = read_stage_2(write_run(tmp_path, epochs=50, per_epoch=2, first_epoch=21).stage_2)
    points = {"start": accuracy(0.6)["accuracy"], "1": {"as_trained": None}, "2": accuracy(0.7)["accuracy"]}
    with_gap = replace(record, result=replace(record.result, metrics=[MetricResult(ACCURACY, points)]))
    assert with_gap.by_point(AS_TRAINED) == {0: 0.6, 2: 0.7}
    assert with_gap.stage_1 is not None
    assert on_equal_terms(with_gap.stage_1, with_gap, ACCURACY)[1] == {50: 0.6, 52: 0.7}


def test_a_basis_that_was_written_in_the_place_of_the_search_s_is_not_taken_for_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=50, per_epoch=2, first_epoch=21)
    before = read_stage_2(run.stage_2)
    assert before.basis is not None
    assert before.missing_sources == ()
    series = CheckpointSeries.open(run.stage_1 / "checkpoint_stage_1" / "checkpoint_pca")
    fit_basis(series, 3, out=before.basis.path, overwrite=True)
    after = read_stage_2(run.stage_2)
    assert (after.basis, after.missing_sources) == (None, ("basis",))


def rewrite(file: Path, numbers: list[int]) -> None:
    """Replace the lines of a file of records by those of these numbers, from 0."""
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[number] for number in numbers))


def test_records_that_are_missing_or_there_twice_are_told_of_each_stage(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=9, per_epoch=9, first_epoch=1)
    assert read_stage_2(run.stage_2).gaps == ()
    rewrite(run.stage_1 / "metrics.jsonl", [0, 1, 4, 4, 5, 7, 8])
    rewrite(run.stage_2 / "metrics.jsonl", [0])
    of_1, of_2 = read_stage_2(run.stage_2).gaps
    assert of_1.startswith("The metrics.jsonl of stage 1 does not have each epoch from 1 to 9 once and in order, so")
    assert of_2.startswith(
        "The metrics.jsonl of stage 2 does not have each step from 1 to 2 once and in order, so what"
    )
    rewrite(run.stage_2 / "metrics.jsonl", [0, 0])  # as many as there were
    assert read_stage_2(run.stage_2).gaps[1] == of_2


def test_a_stage_1_that_began_with_another_s_checkpoint_has_no_gap_before_its_first_epoch(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=9, per_epoch=9, first_epoch=1)
    rewrite(run.stage_1 / "metrics.jsonl", [4, 5, 6])
    assert read_stage_1(run.stage_1 / "checkpoint_stage_1").gaps is None
    rewrite(run.stage_1 / "metrics.jsonl", [1, 0])
    assert "each epoch from 5 to 6 once and in order" in str(read_stage_1(run.stage_1 / "checkpoint_stage_1").gaps)


def test_a_run_at_work_may_replace_snapshots_while_a_report_reads_them(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=9, per_epoch=1, first_epoch=1)
    record = read_stage_1(run.stage_1 / "checkpoint_stage_1")
    at_work = CheckpointSeries(run.stage_1 / "checkpoint_stage_1" / "checkpoint_pca", keep=4, resume=True)
    at_work.append({"weight": np.ones(6, np.float32)}, 10, 10)
    fractions = record.variance_fractions()
    assert fractions is not None
    assert len(fractions) == 3  # of the four that are there now
    at_work.paths[-1].unlink()  # which is not the run's doing
    with pytest.raises(CheckpointError, match=r"10\.ckpt is not found"):
        read_stage_1(run.stage_1 / "checkpoint_stage_1").variance_fractions()
