"""Metrics as JSON lines."""

from pathlib import Path

from dimred.runtime.metrics import MetricsLog, read_metrics


def test_records_are_appended_across_openings_and_no_number_breaks_the_format(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write(step=1, loss=float("nan"), seconds={"gradient": float("inf"), "trials": 0.5})
        assert read_metrics(path) == [{"step": 1, "loss": None, "seconds": {"gradient": None, "trials": 0.5}}]
    with MetricsLog(path) as log:
        log.write(step=2, loss=0.25)
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
