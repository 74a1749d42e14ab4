"""The page of a run whose files were written by hand, so that what it must say is known."""

import re
from pathlib import Path

from dimred.report.report import write_report, write_stage_1_report
from dimred.report.run_record import read_run, read_stage_1
from tests.helpers.run_files import write_run


def described(page: Path) -> list[str]:
    """What each picture tells a reader who can't see it."""
    return re.findall(r'aria-label="(.*?)"', page.read_text())


def test_the_snapshots_are_shaded_where_they_were_taken_with_several_in_an_epoch(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, epochs=50, per_epoch=2, first_epoch=21).stage_2)
    (tmp_path / "out").mkdir()
    page = write_report(tmp_path / "out", run, None, None, None)
    assert "snapshots were taken in epochs 21 to 50" in described(page)[0]


def test_a_running_stage_1_may_be_in_the_middle_of_a_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path, epochs=5, per_epoch=1, first_epoch=1).stage_1
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 6, "lo')
    (tmp_path / "out").mkdir()
    page = write_stage_1_report(tmp_path / "out", read_stage_1(folder), [], None)
    assert "<b>5</b><span>epochs done</span>" in page.read_text()
