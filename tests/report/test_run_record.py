"""What a report reads of a run: a metric that was not finite, and the basis that its search had."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import RunError
from dimred.report.run_record import on_equal_terms, read_stage_1, read_stage_2
from dimred.run_files.metric import ACCURACY, AS_TRAINED
from dimred.run_files.stage_two_result import MetricResult
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


def test_a_finished_search_that_has_lost_a_record_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, epochs=50, per_epoch=2, first_epoch=21).stage_2
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(
        RunError, match=rf"has {len(lines) - 1} records, but result.json says that the search took {len(lines)}"
    ):
        read_stage_2(folder)


def test_the_spectrum_is_left_out_if_a_run_at_work_has_removed_a_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = write_run(tmp_path, epochs=9, per_epoch=1, first_epoch=1).stage_1 / "checkpoint_stage_1"
    record = read_stage_1(checkpoints)
    at_work = CheckpointSeries.resume(checkpoints / "checkpoint_pca", keep=4)
    at_work.append({"weight": np.ones(6, np.float32)}, 10, 10)
    assert record.variance_fractions() is None
    assert f"The spectrum of the snapshots is left out: {record.snapshots.paths[0]} does not exist." in caplog.messages
    fractions = read_stage_1(checkpoints).variance_fractions()
    assert fractions is not None
    assert len(fractions) == 3  # of the four that are there now
