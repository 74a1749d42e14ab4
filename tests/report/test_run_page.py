"""The page of a run whose files were written by hand, so that its text is known, and the page's parts."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dimred.config import StageOneConfig, load_config
from dimred.errors import ConfigError
from dimred.report.cooldown_report import CooldownReport
from dimred.report.page import Page, details, figure, table
from dimred.report.run_page import make_report_folder, write_report, write_stage_1_report
from dimred.report.run_record import on_equal_terms, read_stage_1, read_stage_2
from dimred.report.words import run_verdict
from dimred.run_files.metric import ACCURACY, AS_TRAINED, TOP5
from dimred.run_files.stage_two_result import MetricResult
from tests.helpers.planted import write_series
from tests.helpers.run_files import RunFiles, accuracy, write_config, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return write_run(tmp_path, epochs=50, per_epoch=2, first_epoch=21)


def stage_1_page(run: RunFiles, out: Path) -> Path:
    record = read_stage_1(run.stage_1 / "checkpoint_stage_1")
    make_report_folder(out, "dimred report run")
    return write_stage_1_report(out, record, load_config(StageOneConfig, run.stage_1 / "config.yaml"))


def stage_2_page(run: RunFiles, out: Path, **changed: object) -> Path:
    """Write the page of a stage 2 in whose result some values are changed."""
    record = read_stage_2(run.stage_2)
    make_report_folder(out, "dimred report run")
    return write_report(out, replace(record, result=replace(record.result, **changed)))


def described(page: Path) -> list[str]:
    """Return what each picture tells a reader who can't see it."""
    return re.findall(r'aria-label="(.*?)"', page.read_text())


def test_a_running_stage_1_may_be_in_the_middle_of_a_line_and_before_its_first_snapshot(
    run: RunFiles, tmp_path: Path
) -> None:
    with (run.stage_1 / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 51, "lo')
    for path in (run.stage_1 / "checkpoint_stage_1" / "checkpoint_pca").iterdir():
        path.unlink()
    page = stage_1_page(run, tmp_path / "out")
    assert "<b>50</b><span>epochs done</span>" in page.read_text()
    assert "<b>0</b><span>snapshots kept</span>" in page.read_text()
    assert "snapshots were taken" not in described(page)[0]


@pytest.mark.parametrize("point", ["start", "final"])
def test_an_accuracy_that_is_not_finite_has_no_gain(run: RunFiles, point: str) -> None:
    record = read_stage_2(run.stage_2)
    record.result.main.by_point[point] = {AS_TRAINED: None}  # as result.json has NaN
    use, gains, _ = run_verdict(record, "test")
    assert ("nan on test" in use) == (point == "final")
    assert gains.startswith("It stands against stage 1 after epoch 50 (")
    assert ("50 (nan)" in gains) == (point == "start")


def test_snapshots_that_are_equal_have_no_spectrum(run: RunFiles, tmp_path: Path) -> None:
    equal = write_series(tmp_path / "equal", np.ones((3, 20)))
    assert replace(read_stage_1(run.stage_1 / "checkpoint_stage_1"), snapshots=equal).variance_fractions() is None


def test_the_measurements_of_the_averaged_weights_are_shown(run: RunFiles, tmp_path: Path) -> None:
    measured = {"loss": 0.1, "metrics": {}, "averaged_window": 20, "averaged_standard_error": 0.012}
    first = {"epoch": 51, "averaged_loss": 0.75, "averaged_gain": None, "averaged_gain_standard_error": None}
    second = {"epoch": 52, "averaged_loss": 0.25, "averaged_gain": 0.5, "averaged_gain_standard_error": 0.03}
    with (run.stage_1 / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(measured | record) + "\n" for record in (first, second))
    page = stage_1_page(run, tmp_path / "out").read_text()
    assert "<b>0.2500</b><span>loss on val of the mean of 20 snapshots, after epoch 52</span>" in page
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    assert ["51", "20", "0.7500 ± 0.0120", ""] in rows
    assert ["52", "20", "0.2500 ± 0.0120", "0.5000 ± 0.0300"] in rows


def test_a_report_replaces_an_earlier_one(run: RunFiles, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_report_folder(out, "dimred report run")
    (out / "report.html").write_text("of an earlier report")
    (out / "loss.png").write_bytes(b"of an earlier report")
    assert stage_1_page(run, out) == out / "report.html"
    text = (out / "report.html").read_text()
    assert "Stage 1" in text
    assert "likely too good" not in text
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_with_anything_but_a_report_or_a_file_is_left_alone(run: RunFiles, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "loss.png").write_text("mine")
    for place, said in (
        (mine, r"which holds loss\.png and no report"),
        (mine / "loss.png", "can't be made or written"),
    ):
        with pytest.raises(ConfigError, match=f"--out is .*{said}.* name another folder"):
            stage_1_page(run, place)
    assert [path.read_text() for path in mine.iterdir()] == ["mine"]
    out = tmp_path / "out"
    make_report_folder(out, "dimred report run")  # the program is killed after its first picture
    (out / "loss.png").write_text("half")
    (out / "notes.txt").write_text("mine")
    assert "was not finished. To make it: dimred report run\n" in (out / "report.html").read_text()
    assert "was not finished" not in stage_1_page(run, out).read_text()
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_basis_from_elsewhere_says_neither_epochs_nor_spectrum(
    run: RunFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pca_mat.h5").unlink()
    page = stage_2_page(run, tmp_path / "out")
    assert "pca_mat" in caplog.text
    assert "snapshots were taken" not in described(page)[0]
    assert not (tmp_path / "out" / "spectrum.svg").exists()


def test_the_page_says_what_to_use_why_at_which_cost_and_what_the_search_did(run: RunFiles, tmp_path: Path) -> None:
    path = stage_2_page(run, tmp_path / "out")
    page = path.read_text()
    said = re.search(r'</h1>\n<p class="verdict">(.*?)</p>', page)
    assert said
    final = run.stage_2 / "checkpoint_stage_2" / "net-final.ckpt"
    assert said[1] == (
        f"Use {final}: 70.00 % on test, BatchNorm re-estimated. That is 10.00 points above stage 1 after epoch 50 "
        "(60.00 %) and 8.00 points above the best average of the snapshots (uniform of 3 snapshots, 62.00 %). Stage 2 "
        "cost 2.3 passes after the 50 of stage 1, and 6 s."
    )
    for fact in (str(run.stage_2), "stage 1 2 min, stage 2 6 s", str(tmp_path)):
        assert f"<td>{fact}</td>" in page
    best = "<b>uniform of 3 snapshots</b></td><td>3</td><td>0.5000</td><td>50.00 %</td><td>0.0000 ± 0.0000"
    for row in (
        best,
        "the last weights of stage 1</td><td>1</td><td>0.6000</td><td>40.00 %</td><td>0.1000 ± 0.0100",
        "<b>epoch 1</b>",
    ):
        assert f"<td>{row}</td>" in page
    assert '<th scope="col">effective number</th>' in page
    assert "The effective number says how many networks with equal weights would average out as much noise." in page
    assert "The number after ± is the standard error of that difference over the samples of val" in page
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[:3] == ["Curves", "Subspace", "The search, step by step"]
    assert headings[-2:] == ["What was compared", "Configuration and versions"]
    assert "2 networks were measured: 0.9 forward passes over the training split, 1 s." in page
    assert "snapshots were taken in epochs 21 to 50" in described(path)[0]
    says = " ".join(described(path))
    assert "Gain of each step, 0.1 on average at first and 0.1 at the end; 2 of 2 steps were accepted, with 4" in says
    assert (
        "The steps moved 0.447 in total inside the subspace, and ended 0.447 away from the start; outside it they"
        in says
    )
    assert "Movement along each of the 2 directions; the farthest is direction 2, 0.4." in says
    assert "Training loss over epochs: stage 1 from 2 to 0.04; stage 2 from 1 to 1." in says


@pytest.mark.slow
def test_top5_and_what_is_likely_too_good_are_on_the_pages_of_both_stages(run: RunFiles, tmp_path: Path) -> None:
    result = read_stage_2(run.stage_2).result
    top5 = MetricResult(TOP5, {"start": {"as_trained": 0.9}, "final": {"as_trained": 0.94, "reestimated": 0.95}})
    changed = {"metrics": [*result.metrics, top5], "warning": "'val' is the split that chooses."}
    page = stage_2_page(run, tmp_path / "two", **changed).read_text()
    assert "&#x27;val&#x27; is the split that chooses." in page
    assert "<b>95.00 %</b><span>top5 on test of the network to use: epoch 1</span>" in page
    write_config(run.stage_1, "model: {n_classes: 100}\nstage_1: {stop: averaged}\n")
    with (run.stage_1 / "metrics.jsonl").open("a") as file:
        figures = accuracy(0.5) | {"top5": {"as_trained": 0.75}}
        file.write(json.dumps({"epoch": 51, "loss": 0.1, "metrics": figures}) + "\n")
    page = stage_1_page(run, tmp_path / "one").read_text()
    assert "<b>75.00 %</b><span>top5 on val after epoch 51</span>" in page
    assert "this figure is likely too good" in page


def test_both_stages_are_drawn_with_the_same_kind_of_statistics(run: RunFiles) -> None:
    """The statistics are re-estimated if both stages have such values; what only one stage has is not drawn."""
    stage_1, stage_2 = read_stage_1(run.stage_1 / "checkpoint_stage_1"), read_stage_2(run.stage_2)
    points = {"start": accuracy(0.6, 0.62)["accuracy"], "1": accuracy(0.65, 0.7)["accuracy"]}
    both = replace(stage_2, result=replace(stage_2.result, metrics=[MetricResult(ACCURACY, points)]))
    assert on_equal_terms(stage_1, both, ACCURACY) == (
        stage_1.by_epoch(ACCURACY, AS_TRAINED),
        {50: 0.6, 51: 0.65},
        "statistics as trained",
    )
    assert on_equal_terms(stage_1, None, ACCURACY)[2] == ""  # as for a network without BatchNorm
    reestimated = replace(stage_1, epochs=[one | {"metrics": accuracy(0.5, 0.9)} for one in stage_1.epochs])
    assert on_equal_terms(reestimated, stage_2, ACCURACY)[2] == "statistics as trained"
    plain, later, statistics = on_equal_terms(reestimated, both, ACCURACY)
    assert (set(plain.values()), later, statistics) == ({0.9}, {50: 0.62, 51: 0.7}, "BatchNorm re-estimated")
    points["2"] = accuracy(0.66)["accuracy"]  # which was not measured with re-estimated statistics
    mixed = replace(stage_2, result=replace(stage_2.result, metrics=[MetricResult(ACCURACY, points)]))
    assert on_equal_terms(reestimated, mixed, ACCURACY)[1:] == ({50: 0.6, 51: 0.65, 52: 0.66}, "statistics as trained")


@pytest.mark.slow
def test_what_is_not_there_any_more_is_left_out_and_said(run: RunFiles, tmp_path: Path) -> None:
    shutil.rmtree(run.stage_1)
    (tmp_path / "pca_mat.npy").unlink()
    text = stage_2_page(run, tmp_path / "out").read_text()
    assert "Parts that need the weights and the basis are left out," in text
    assert "70.00 % on test, BatchNorm re-estimated. That is 10.00 points above stage 1 after epoch 50 (60" in text
    assert {path.stem for path in (tmp_path / "out").glob("*.svg")} == {
        "loss",
        "gains",
        "movement",
        "coordinates",
        "captured",
    }


def test_the_losses_of_both_stages_lie_on_one_axis_of_epochs(run: RunFiles) -> None:
    record = read_stage_2(run.stage_2)
    assert [list(values) for values in record.losses()] == [[50.5, 51.0], [1.0, 1.0]]
    epochs = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    (run.stage_2 / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in epochs))
    cooled = replace(record, method=CooldownReport(run.stage_2, record.config, record.result))
    assert [list(values) for values in cooled.losses()] == [[51, 52], [0.5, 0.25]]


SVG = '<?xml version="1.0"?>\n<svg width="1"><defs><path id="a"/></defs><use href="#a"/><g clip-path="url(#a)"/></svg>'


def test_all_that_a_page_shows_is_its_main_part(tmp_path: Path) -> None:
    """Readers of screens jump to it."""
    page = Page(tmp_path, "page.html")
    page.add("Part", [], "below")
    body = page.write("Title", "summary").read_text().partition("<body>")[2]
    assert body.count("main>") == 2
    before, inside, after = re.split("</?main>", body)
    assert before.strip() == ""
    assert after.split() == ["</body>", "</html>"]
    assert all(text in inside for text in ("<h1>Title", "summary", "<nav>", "below"))


def test_text_is_not_markup(tmp_path: Path) -> None:
    page = Page(tmp_path, "page.html")
    page.add("A & B", [], table(("<i>",), [("<script>", "**x**")]) + details("<u>", "</pre>"))
    made = page.write("<b>", "").read_text()
    for tag in ("<b>", "<i>", "<script>", "<u>", "</pre></pre>"):
        assert tag not in made.replace("<b>x</b>", "")
    assert "<b>x</b>" in made
    assert 'id="a-b"' in made
    assert 'href="#a-b"' in made


def test_names_within_a_picture_are_its_own() -> None:
    drawn = figure("one", SVG, 'says "so"', "below")
    assert 'id="one-a"' in drawn
    assert 'href="#one-a"' in drawn
    assert "url(#one-a)" in drawn
    assert 'aria-label="says &quot;so&quot;"' in drawn
    assert "<?xml" not in drawn
