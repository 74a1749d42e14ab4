"""The demo, whole, as the README gives it."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.helpers.commands import REPOSITORY, run


@pytest.mark.slow
def test_the_demo_ends_with_a_table_a_summary_and_a_picture_that_agree(tmp_path: Path) -> None:
    out = tmp_path / "a demo"
    done = run(
        "bash", REPOSITORY / "scripts" / "demo.sh", "--out", out, "--seed", "1", cwd=tmp_path, timeout_seconds=1800
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    plain, stage_2, basis = summary["plain"], summary["stage_2"], summary["basis"]
    assert summary["seed"] == 1
    assert list(plain) == [str(epoch) for epoch in range(1, 91)]
    assert 0.85 <= plain["90"] <= 0.93
    assert (basis["n_snapshots"], basis["n_components"], basis["n_weights"]) == (40, 32, 19954)
    assert 0.9 < basis["explained_variance"] < 1
    assert (stage_2["start"], stage_2["epochs"], stage_2["steps"]) == ("best", 2, 36)
    assert 0 < stage_2["accepted_steps"] <= 36
    assert stage_2["accuracy"] >= plain["80"]
    assert stage_2["accuracy_reestimated"] >= plain["80"]
    assert set(summary["seconds"]) == {
        "data",
        "stage_1",
        "pca",
        "stage_2",
        "average",
        "evaluate",
        "report",
        "plain_to_the_end",
    }
    rows = re.findall(r"^│ (.+?) *│ +(\d+) │ +([\d.]+) % │", done.stdout, re.MULTILINE)
    assert len(rows) == 7
    assert ("plain training", "90", f"{100 * plain['90']:.2f}") in rows
    kept = {"start": "its start", "1": "epoch 71", "2": "epoch 72"}[stage_2["kept"]]
    assert (f"stage 2, from mean, kept {kept}", "72", f"{100 * stage_2['accuracy']:.2f}") in rows
    assert done.stdout.splitlines()[-1] == f"report: {out / 'report' / 'report.html'}"
    assert "plane-near" in (out / "report" / "report.html").read_text()
    with Image.open(out / "accuracy.png") as picture:
        assert picture.size == (1200, 675)
    again = run("bash", REPOSITORY / "scripts" / "demo.sh", "--out", out, cwd=tmp_path)
    assert again.returncode == 2
    assert "earlier results" in again.stderr
    assert "installing" not in again.stderr
