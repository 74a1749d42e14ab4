"""The tables of a study's page are those that its command prints from the store beside it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("page", "module", "store", "least"),
    [
        ("published_claim.md", "published_claim", "claims/published", 3),
        ("published_claim.md", "published_claim", "claims/constant", 3),
        ("published_claim.md", "published_claim", "claims/published --again claims/again/published", 1),
        ("published_claim.md", "published_claim", "claims/constant --again claims/again/constant", 1),
        ("choice.md", "choice_rules", "choices", 4),
        ("after_adamw.md", "after_adamw", "", 6),
        ("../../README.md", "readme_table", "", 1),
    ],
)
def test_every_table_that_is_printed_stands_in_the_page(page: str, module: str, store: str, least: int) -> None:
    arguments = [word if word.startswith("--") else str(HERE / word) for word in store.split()]
    command = [sys.executable, "-m", f"tests.studies.{module}", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE.parents[1]).stdout
    tables = re.findall(r"(?:^\|.*\n)+", printed, re.MULTILINE)
    assert len(tables) >= least
    text = (HERE / page).read_text(encoding="utf-8")
    assert [table for table in tables if table not in text] == []
