"""The demo runs as the README gives it, and with a short stage 1."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from dimred.io.checksums import read_checksummed
from tests.helpers.commands import REPOSITORY, dimred, run


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 12])
def test_the_demo_ends_with_a_table_a_sentence_and_a_picture_that_agree(epochs: int, tmp_path: Path) -> None:
    out = tmp_path / "a demo"
    command = ("bash", REPOSITORY / "scripts" / "demo.sh", "--out", out, "--seed", "1", "--epochs", epochs)
    done = run(*command, cwd=tmp_path, timeout_seconds=1800, status=0)
    result = read_checksummed(out / "device0_stage_2" / "result.json")
    found = re.findall(r"^ *\S.*? {2,}([\d.]+) +([\d.]+) % *$", done.stdout, re.MULTILINE)
    (_, stage_1), (average_at, average), (ours_at, ours), (same_at, _), (twice_at, _) = found
    assert (float(same_at), float(twice_at)) == {2: (5, 10), 12: (16, 32)}[epochs]
    assert epochs < float(average_at) < float(ours_at) <= float(same_at)  # the cost of choosing counts
    told = [f"{100 * result[name]:.2f}" for name in ("accuracy_average", "accuracy_reestimated")]
    assert [average, ours] == told
    assert result["kept"] in {candidate["name"] for candidate in result["kept_candidates"]}
    assert f"both stages reach {ours} %; plain training" in done.stdout
    if epochs == 12:
        assert min(float(accuracy) for _, accuracy in found[1:]) > 80
    assert done.stdout.splitlines()[-1] == f"report: {out / 'report' / 'report.html'}"
    assert "plane-near" in (out / "report" / "report.html").read_text()
    with Image.open(out / "accuracy.png") as picture:
        assert picture.width == 1200
    [weights] = (out / "device0_stage_1" / "checkpoint_stage_1").glob(f"*-{epochs}_*.ckpt")
    evaluated = dimred("eval", out / "data", weights, "--config", "digits", "--json", cwd=tmp_path)
    assert json.loads(evaluated.stdout)["accuracy_reestimated"] == pytest.approx(float(stage_1) / 100, abs=1e-4)
    again = run(*command, cwd=tmp_path, status=2)
    assert "File exists" in again.stderr
    assert "name another folder" in again.stderr
