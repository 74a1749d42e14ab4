"""The page of a search over checkpoints."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.merging.inputs import work_folder
from dimred.merging.trials import read_trials
from dimred.report.merge_page import plot_coefficients, plot_history, plot_trials, plot_windows, write_merge_page
from tests.helpers.checkpoint_files import write_file
from tests.oracles import merge as oracle

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
    dimred.merge(tmp_path / "run", out, metric=score, minimize=True, budget=60)
    return work_folder(out)


def record_of(work: Path) -> dict:
    return json.loads(work.with_suffix(".json").read_text())


def test_the_page_is_whole_by_itself(work: Path) -> None:
    page = write_merge_page(record_of(work), work)
    text = page.read_text()
    assert page == work / "merge.html"
    assert set(re.findall(r'<figure id="figure-([a-z-]+)"', text)) == {
        "windows",
        "coefficients",
        "merge-plane",
        "history",
    }
    assert "<script" not in text
    assert not re.search(r'(src|href)="http', text)
    assert "Merge of 6 checkpoints" in text
    assert "&lt;b&gt;not the last&lt;/b&gt;" in text
    assert {path.suffix for path in work.glob("history.*")} == {".png", ".svg"}
    again = text
    assert write_merge_page(record_of(work), work).read_text() == again


def test_the_windows_stand_at_their_ends(work: Path) -> None:
    _, trials, _ = read_trials(work / "trials.jsonl")
    found = np.asarray(plot_windows(trials, list(range(6)), lower=True).axes[0].images[0].get_array())
    assert np.isnan(found[5, 5])  # the last one failed
    assert found[5, 0] == pytest.approx(np.linalg.norm(VECTORS.mean(axis=0)), rel=1e-5)
    assert found[5, 4] == pytest.approx(np.linalg.norm(VECTORS[4:].mean(axis=0)), rel=1e-5)
    assert np.isnan(found[0, 5])


def test_the_bars_are_the_coefficients() -> None:
    figure = plot_coefficients(np.array([1.0, 2.0, 1.0]), [10, 20, 30])
    assert [bar.get_height() for bar in figure.axes[0].patches] == [0.25, 0.5, 0.25]


def test_the_plane_is_that_of_the_first_two_directions(work: Path) -> None:
    _, trials, _ = read_trials(work / "trials.jsonl")
    scored = [trial for trial in trials if trial.split == "search" and trial.score]
    kept = np.array([0, 0, 0.5, 0.5, 0, 0])
    axes = plot_trials(scored, oracle.gram(list(VECTORS)), kept, lower=True).axes[0]
    centred = VECTORS.astype(np.float64) - VECTORS.mean(axis=0, dtype=np.float64)
    rows = np.linalg.svd(centred, full_matrices=False)[2][:2]
    path, star = axes.lines[0].get_xydata(), axes.lines[1].get_xydata()
    np.testing.assert_allclose(np.abs(path), np.abs(centred @ rows.T), rtol=1e-6)
    np.testing.assert_allclose(np.abs(star[0]), np.abs(kept @ centred @ rows.T), rtol=1e-6)
    points = sum(len(collection.get_offsets()) for collection in axes.collections)
    assert points == len(scored)


def test_the_history_has_the_best_so_far(work: Path) -> None:
    _, trials, _ = read_trials(work / "trials.jsonl")
    scored = [trial for trial in trials if trial.split == "search" and trial.score]
    best = plot_history(scored, lower=True).axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(best, np.minimum.accumulate([trial.score.value for trial in scored]))
