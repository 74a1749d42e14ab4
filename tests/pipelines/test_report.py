"""``dimred report`` on a real run makes one self-contained file, which a program and a browser can read."""

import importlib.metadata
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.report.run_record import read_stage_2
from dimred.run_files.stage_two_result import StageTwoResult
from tests.helpers.commands import TwoStages, dimred_here, run

PICTURES = {"metric", "loss", "spectrum", "plane", "gains", "movement", "coordinates", "captured", "classes"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    options = ("--out", folder / "out", "--grid", 3, "--batches", 1)
    done = dimred_here("report", searched, *options, cwd=folder, status=0)
    assert done.stdout == f"report: {folder / 'out' / 'report.html'}\n"
    return folder / "out" / "report.html"


def pictures(text: str) -> set[str]:
    return set(re.findall(r'id="figure-([^"]+)"', text))


@pytest.mark.slow
def test_the_page_is_whole_by_itself(page: Path) -> None:
    text = page.read_text()
    ids, links = re.findall(r'\bid="([^"]*)"', text), re.findall(r'\b(?:href|src)="([^"]*)"', text)
    assert "<script" not in text
    assert not re.search(r"@import|url\((?!#)", text)
    assert len(ids) == len(set(ids))
    assert {link for link in links if not link.startswith("#")} == {"data:,"}
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)


@pytest.mark.slow
def test_every_picture_is_there_in_three_formats_with_a_description(page: Path) -> None:
    labels = re.findall(r'<svg\b[^>]*\baria-label="([^"]*)"', page.read_text())
    assert pictures(page.read_text()) == PICTURES
    assert len(labels) == len(PICTURES)
    assert min(map(len, labels)) > 30
    for name in PICTURES:
        assert (page.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.parse(page.parent / f"{name}.svg")


@pytest.mark.slow
def test_the_figures_on_the_page_are_those_of_the_run(page: Path, searched: Path, two_stages: TwoStages) -> None:
    text, result = page.read_text(), StageTwoResult.read(searched / "result.json")
    assert f"<b>{100 * result.main.at('final'):.2f} %</b><span>accuracy on test of the network to use" in text
    assert f"<b>{result.totals['accepted_steps']} of {result.steps}</b>" in text
    told = re.search(r"Of ([\d,]+) samples of test, the network to use takes ([\d,]+) for another class\.", text)
    assert told
    n_samples, n_wrong = (int(number.replace(",", "")) for number in told.groups())
    assert 1 - n_wrong / n_samples == pytest.approx(result.main.at("final"))
    assert importlib.metadata.version("mindspore") in text
    assert str(two_stages.weights) in text


def test_the_steps_lead_where_the_checkpoints_are(searched: Path) -> None:
    """With alpha = 0 the summed steps must be the checkpoints' coordinates."""
    record = read_stage_2(searched)
    basis = record.basis
    folder = searched / "checkpoint_stage_2"
    start, first = (
        basis.layout.flatten(read_checkpoint(folder / f"resnet_small-{point}.ckpt")) for point in ("start", "1_9")
    )
    moved = basis.project(first.astype(np.float64) - start)
    np.testing.assert_allclose(record.method.steps.coordinates[9], moved, atol=1e-4 * np.abs(moved).max())


@pytest.mark.slow
def test_a_run_is_measured_as_its_checkpoint_is_by_either_configuration(
    two_stages: TwoStages, searched: Path, tmp_path: Path
) -> None:
    config = searched / "config.yaml"
    done = dimred_here("eval", two_stages.data, two_stages.weights, "--config", config, "--json", cwd=tmp_path)
    last = json.loads(done.stdout)
    by_run = dimred_here("eval", two_stages.data, two_stages.stage_1, "--json", cwd=tmp_path, status=0)
    of_run = json.loads(by_run.stdout)["metrics"]["accuracy"]
    assert of_run["as_trained"] == last["metrics"]["accuracy"]["as_trained"]
    assert last["split"] == "test"


@pytest.mark.slow
def test_weights_that_are_not_finite_are_not_measured_in_silence(
    two_stages: TwoStages, few_digits: Path, tmp_path: Path
) -> None:
    arrays = read_checkpoint(two_stages.weights)
    name = next(name for name, value in arrays.items() if value.ndim > 1)
    write_checkpoint(tmp_path / "net.ckpt", arrays | {name: np.full_like(arrays[name], np.nan)})
    call = ("eval", few_digits, tmp_path / "net.ckpt", "--config", two_stages.stage_1 / "config.yaml")
    said = f"net.ckpt' has '{name}' with an infinite number or NaN; a metric measured with it means nothing"
    assert said in dimred_here(*call, cwd=tmp_path, status=0).stderr
    write_checkpoint(tmp_path / "int.ckpt", arrays | {name: np.ones(arrays[name].shape, np.int8)})
    done = dimred_here(*call[:2], tmp_path / "int.ckpt", *call[3:], cwd=tmp_path, status=2)
    assert f" has '{name}' in the type int8, but the network has Float32" in done.stderr


def test_a_wrong_run_is_one_line(two_stages: TwoStages, searched: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "result.json").write_text((searched / "result.json").read_text().replace('"steps": ', '"steps": 1'))
    for folder, said in (
        (tmp_path / "nowhere", "not a folder"),
        (two_stages.data, "no result.json"),
        (changed, "can't be used (it was changed after it was written"),
    ):
        done = dimred_here("report", folder, "--out", tmp_path / "out", cwd=tmp_path, status=2)
        *before, error = done.stderr.splitlines()
        assert [line for line in before if not line.startswith("device: ")] == []
        assert said in error
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_checkpoints_of_stage_2_that_were_removed_leave_their_pictures_out_and_it_is_said(
    searched: Path, tmp_path: Path
) -> None:
    """Without the start the path in the plane would begin at the first epoch."""
    run = shutil.copytree(searched, tmp_path / "two", ignore=shutil.ignore_patterns("*-start.ckpt", "report"))
    dimred_here("report", run, "--out", tmp_path / "out", "--batches", 1, cwd=tmp_path, status=0)
    text = (tmp_path / "out" / "report.html").read_text()
    assert "Parts that need the checkpoints of stage 2 are left out, because these are gone or were replaced." in text
    assert pictures(text) < PICTURES


@pytest.mark.parametrize("replaced", ["weights", pytest.param("data", marks=pytest.mark.slow)])
def test_a_stage_1_or_data_that_were_replaced_are_left_out(searched: Path, tmp_path: Path, replaced: str) -> None:
    """Otherwise the page would show a stage 1 that this stage 2 did not begin from."""
    run = shutil.copytree(searched, tmp_path / "two", ignore=shutil.ignore_patterns("report"))
    result = StageTwoResult.read(run / "result.json")
    others = {name: "another" for name in result.digests if name.startswith(replaced.upper())}
    replace(result, digests=result.digests | others).write(run / "result.json")
    record = read_stage_2(run)
    assert (record.stage_1 is None) == (replaced == "weights") == ("weights" in record.missing_sources)
    if replaced == "data":
        dimred_here("report", run, "--out", tmp_path / "out", "--batches", 1, cwd=tmp_path, status=0)
        text = (tmp_path / "out" / "report.html").read_text()
        assert "Parts that need the data are left out, because these are gone or were replaced." in text
        assert "figure-plane" not in text


@pytest.mark.slow
def test_stage_1_alone_again_and_again(two_stages: TwoStages, tmp_path: Path) -> None:
    for _ in range(2):
        dimred_here("report", two_stages.weights, "--out", tmp_path / "out", cwd=tmp_path, status=0)
    text = (tmp_path / "out" / "report.html").read_text()
    assert pictures(text) == {"metric", "loss", "spectrum"}
    record = json.loads((two_stages.stage_1 / "metrics.jsonl").read_text().splitlines()[-1])
    told = "accuracy on test after epoch 3, BatchNorm re-estimated"
    assert f"<b>{100 * record['metrics']['accuracy']['reestimated']:.2f} %</b><span>{told}" in text
    assert "<b>36</b><span>snapshots kept" in text
    assert "all together 100.00 %" in text


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH; apt-get install chromium")
def test_a_browser_shows_it_without_complaint(page: Path, tmp_path: Path) -> None:
    common = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
        "--v=0",
    ]
    url = page.as_uri()
    done = run(*common, "--window-size=1280,3000", f"--screenshot={tmp_path / 'page.png'}", url, cwd=tmp_path)
    assert "CONSOLE" not in done.stderr
    assert (tmp_path / "page.png").stat().st_size > 50_000
    # at a telephone's width nothing but the table's own frame scrolls sideways
    frame = tmp_path / "phone.html"
    frame.write_text(
        f'<iframe id="f" src="{url}" style="width:390px;height:900px;border:0"></iframe><p id="said"></p><script>'
        'f.onload = () => { said.textContent = "WIDTH " + f.contentDocument.documentElement.scrollWidth }</script>'
    )
    shown = run(
        *common,
        "--allow-file-access-from-files",
        "--virtual-time-budget=5000",
        "--dump-dom",
        frame.as_uri(),
        cwd=tmp_path,
    )
    width = re.search(r"WIDTH (\d+)", shown.stdout)
    assert width, shown.stderr
    assert int(width[1]) <= 390
