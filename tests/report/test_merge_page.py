"""The page of a merge by a metric."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.merging.record import work_folder
from dimred.merging.scores import read_scores
from dimred.report.merge_page import plot_coefficients, plot_windows, write_merge_page
from tests.helpers.checkpoint_files import write_file

VECTORS = np.random.default_rng(0).standard_normal((6, 30)).astype(np.float32)


def score(tensors: dict[str, np.ndarray], split: str) -> float:
    if tensors["w"][0] == VECTORS[5][0]:
        raise ValueError("<b>not the last</b>")
    return float(np.linalg.norm(tensors["w"]))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for number, vector in enumerate(VECTORS):
        write_file(tmp_path / "run" / f"net-{number}.safetensors", {"w": vector})
    out = tmp_path / "x.safetensors"
    dimred.merge(tmp_path / "run", out, metric=score, minimize=True)
    return work_folder(out)


def test_the_page_is_whole_by_itself(work: Path) -> None:
    record = json.loads(work.with_suffix(".json").read_text())
    page = write_merge_page(record, work)
    text = page.read_text()
    assert page == work / "merge.html"
    assert set(re.findall(r'<figure id="figure-([a-z-]+)"', text)) == {"windows", "coefficients"}
    assert "<script" not in text
    assert not re.search(r'(src|href)="http', text)
    assert "Merge of 6 checkpoints" in text
    assert "&lt;b&gt;not the last&lt;/b&gt;" in text
    assert {path.suffix for path in work.glob("windows.*")} == {".png", ".svg"}
    assert write_merge_page(record, work).read_text() == text


def test_the_windows_stand_at_their_ends(work: Path) -> None:
    _, trials, _ = read_scores(work / "scores.jsonl")
    found = np.asarray(plot_windows(trials, list(range(6)), "lower").axes[0].images[0].get_array())
    assert np.isnan(found[5, 5])  # the last one failed
    assert found[5, 0] == pytest.approx(np.linalg.norm(VECTORS.mean(axis=0)), rel=1e-5)
    assert found[5, 4] == pytest.approx(np.linalg.norm(VECTORS[4:].mean(axis=0)), rel=1e-5)
    assert np.isnan(found[0, 5])


def test_the_bars_are_the_coefficients() -> None:
    figure = plot_coefficients(np.array([1.0, 2.0, 1.0]), [10, 20, 30])
    assert [bar.get_height() for bar in figure.axes[0].patches] == [0.25, 0.5, 0.25]
