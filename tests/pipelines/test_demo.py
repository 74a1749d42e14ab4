"""The demo, as the README gives it, and with a short stage 1."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.helpers.commands import REPOSITORY, dimred, run


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 12])
def test_the_demo_ends_with_a_table_a_sentence_and_a_picture_that_agree(epochs: int, tmp_path: Path) -> None:
    out = tmp_path / "a demo"
    command = ("bash", REPOSITORY / "scripts" / "demo.sh", "--out", out, "--seed", "1", "--epochs", epochs)
    done = run(*command, cwd=tmp_path, timeout_seconds=1800, status=0)
    summary = json.loads((out / "summary.json").read_text())
    *_, average, ours, same, twice = summary["rows"]
    assert summary["seed"] == 1
    assert (same["passes"], twice["passes"]) == ({2: 5, 12: 16}[epochs], 2 * same["passes"])
    assert epochs < average["passes"] < ours["passes"] <= same["passes"]  # choosing counts
    assert average["accuracy"] == summary["stage_2"]["accuracy_average"]
    assert summary["stage_2"]["kept"] in {candidate["name"] for candidate in summary["stage_2"]["kept_candidates"]}
    rows = re.findall(r"^ *(\S.*?) {2,}([\d.]+) +([\d.]+) % *$", done.stdout, re.MULTILINE)
    told = [(row["what"].strip(), f"{row['passes']:.1f}", f"{100 * row['accuracy']:.2f}") for row in summary["rows"]]
    assert rows == told
    assert len(rows) == 5
    assert f"both stages reach {100 * ours['accuracy']:.2f} %; plain training" in done.stdout
    if epochs == 12:
        assert min(row["accuracy"] for row in summary["rows"][1:]) > 0.8
    assert done.stdout.splitlines()[-1] == f"report: {out / 'report' / 'report.html'}"
    assert "plane-near" in (out / "report" / "report.html").read_text()
    with Image.open(out / "accuracy.png") as picture:
        assert picture.width == 1200
    [weights] = (out / "device0_stage_1" / "checkpoint_stage_1").glob(f"*-{epochs}_*.ckpt")
    evaluated = dimred("eval", out / "data", weights, "--config", "digits", "--json", cwd=tmp_path)
    assert json.loads(evaluated.stdout)["accuracy_reestimated"] == pytest.approx(summary["rows"][0]["accuracy"])
    again = run(*command, cwd=tmp_path, status=2)
    assert "File exists" in again.stderr
    assert "name another folder" in again.stderr
