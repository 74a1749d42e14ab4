"""The page of the study of the end of training has all that its program prints from the store."""

import subprocess
import sys

from tests.studies import end_rule


def test_every_table_and_verdict_that_is_printed_stands_in_the_page() -> None:
    command = [sys.executable, "-m", "tests.studies.end_rule"]
    root = end_rule.HERE.parents[1]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    parts = printed.strip().split("\n\n")
    assert len(parts) == 6
    page = (end_rule.HERE / "end_rule.md").read_text(encoding="utf-8")
    assert [part for part in parts if part not in page] == []
