"""The demo runs as the README gives it, and with a short stage 1."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dimred.run_files.stage_two_result import StageTwoResult
from tests.helpers.commands import REPOSITORY, dimred, run


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 12])
def test_the_demo_ends_with_a_table_a_sentence_and_a_page_that_agree(epochs: int, tmp_path: Path) -> None:
    out = tmp_path / "a demo"
    command = ("bash", REPOSITORY / "scripts" / "demo.sh", "--out", out, "--seed", "1", "--epochs", epochs)
    done = run(*command, cwd=tmp_path, timeout_seconds=1800, status=0)
    search, cooldown = (StageTwoResult.read(out / run_folder / "result.json") for run_folder in ("search", "cooldown"))
    rows = re.findall(r"^ *\S.*? {2,}([\d.]+) +([\d.]+) % *$", done.stdout, re.MULTILINE)
    passes, accuracies = ([float(row[column]) for row in rows] for column in (0, 1))
    assert passes[-2:] == {2: [5, 10], 12: [16, 32]}[epochs]
    assert passes[0] == epochs
    assert epochs + 2 < passes[1] <= epochs + 2 * (1 + 10 / 3)  # two epochs of gradients, and at most ten trials a step
    assert epochs < passes[3] < passes[2] <= passes[4]  # the cost of choosing counts
    reported = [search.main.at("final"), cooldown.main.at("final"), cooldown.main.at("average")]
    assert accuracies[1:4] == [round(100 * accuracy, 2) for accuracy in reported]
    assert f"The search brings it to {rows[1][1]} % after {rows[1][0]}, a cooldown" in done.stdout
    assert np.load(out / "pca_mat.npy", mmap_mode="r").shape[0] == 32
    assert search.sources["basis"] == str(out / "pca_mat.npy")
    assert (search.start, search.cooldown, search.kept) == ("last", None, None)
    if epochs == 12:
        assert min(accuracies) > 80
    assert done.stdout.splitlines()[-1] == f"report: {out / 'report' / 'report.html'}"
    page = (out / "report" / "report.html").read_text()
    assert all(f"{accuracy:.2f} %" in page for accuracy in accuracies)
    for link in re.findall(r'href="(\.\./[^"]+)"', page):
        assert "figure-plane" in (out / "report" / link).read_text()
    with Image.open(out / "report" / "accuracy.png") as picture:
        assert picture.width == 1200
    [weights] = (out / "device0_stage_1" / "checkpoint_stage_1").glob(f"*-{epochs}_*.ckpt")
    evaluated = dimred("eval", out / "data", weights, "--config", "digits", "--json", cwd=tmp_path)
    assert json.loads(evaluated.stdout)["metrics"]["accuracy"]["reestimated"] == pytest.approx(
        accuracies[0] / 100, abs=1e-4
    )
    again = run(*command, cwd=tmp_path, status=2)
    assert "File exists" in again.stderr
    assert "name another folder" in again.stderr
