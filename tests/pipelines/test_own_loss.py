"""A regression of two inputs goes through both stages and the comparison with a user's own loss and metric."""

import json
import logging
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from dimred.cli.measure import compare
from dimred.errors import ConfigError
from dimred.pipelines.report import report
from dimred.pipelines.stage_1 import stage_1
from dimred.pipelines.stage_2 import stage_2
from dimred.run_files.metric import Metric
from dimred.run_files.metrics_file import read_metrics
from dimred.run_files.stage_two_result import StageTwoResult
from tests.helpers.commands import DIMRED
from tests.helpers.results import differences, results
from tests.helpers.tiny_regression import TASK, TOLD

ONE = {
    "epochs": 4,
    "snapshots": {"per_epoch": 4},
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 1},
    "stop": {"every_epochs": 2, "patience": 9},
}
TWO = {"method": "cooldown", "epochs": 2}


class Shown(NamedTuple):
    """The folder of both runs, and what each run printed."""

    folder: Path
    one: str
    two: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder, said, logger = tmp_path_factory.mktemp("regression"), list[str](), logging.getLogger("dimred")
    (folder / "one.yaml").write_text(yaml.safe_dump(TASK | {"stage_1": ONE, "stage_2": TWO}))
    handler, level = logging.Handler(), logger.level
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    TOLD.clear()
    stage_1(folder, folder / "one.yaml", folder / "one")
    n_lines = len(said)
    stage_2(
        folder,
        folder / "one" / "checkpoint_stage_1" / "network-4_4.ckpt",
        out=folder / "two",
    )
    logger.removeHandler(handler)
    logger.setLevel(level)
    return Shown(folder, "\n".join(said[:n_lines]), "\n".join(said[n_lines:]))


def test_the_metric_has_its_own_name_everywhere(shown: Shown) -> None:
    records = read_metrics(shown.folder / "one" / "metrics.jsonl")
    errors = [record["metrics"]["absolute_error"]["as_trained"] for record in records]
    result = StageTwoResult.read(shown.folder / "two" / "result.json")
    assert 0 < errors[-1] < errors[0]
    assert [one.metric for one in result.metrics] == [Metric("absolute_error")]
    assert list(result.by_epoch) == [1, 2]
    assert 0 < result.main.at("final") < result.main.at("start") + 0.1
    assert result.choices["kept"].candidates[-1]["loss"] == pytest.approx(result.main.at("final") ** 2, rel=2)
    assert f"{{'absolute_error': {errors[-1]}}}" in shown.one.splitlines()
    assert f"{{'absolute_error': {result.main.at('final')}}}" in shown.two.splitlines()
    assert re.search(r"^stage 2 starts from WEIGHTS: absolute_error 0\.\d{1,4}$", shown.two, re.MULTILINE)
    for said in (*shown[1:], json.dumps([records, result.as_json()])):
        assert "accuracy" not in said.lower()


def test_a_run_ends_with_its_value_its_network_and_the_next_command(shown: Shown) -> None:
    one, two = (shown.folder / name for name in ("one", "two"))
    errors = [record["metrics"]["absolute_error"]["as_trained"] for record in read_metrics(one / "metrics.jsonl")]
    weights = one / "checkpoint_stage_1" / "network-4_4.ckpt"
    too_good = "'val' is also the split that chooses, so this figure is likely too good; "
    assert shown.one.replace(str(DIMRED), "dimred").splitlines()[-4:] == [
        f"absolute_error on 'val': {errors[-1]:.4g}",
        f"{too_good}data.eval_split=test reports on samples that chose nothing.",
        f"network: {weights}",
        f"next: dimred train stage-2 {shown.folder} {weights} --out {shown.folder} --device-target CPU --devices 1",
    ]
    assert shown.two.replace(str(DIMRED), "dimred").splitlines()[-2:] == [
        f"network: {two / 'checkpoint_stage_2' / 'network-final.ckpt'}",
        f"next: dimred report {two}",
    ]


def test_stage_2_reads_in_the_folder_of_stage_1_what_its_file_says(shown: Shown, tmp_path: Path) -> None:
    weights = shown.folder / "one" / "checkpoint_stage_1" / "network-4_4.ckpt"
    stage_2(shown.folder, weights, config_file=shown.folder / "one.yaml", out=tmp_path / "with")
    assert len(read_metrics(tmp_path / "with" / "metrics.jsonl")) == 2
    assert not differences(results(tmp_path / "with"), results(shown.folder / "two"))


def test_an_epoch_has_the_published_line_and_one_for_people(shown: Shown) -> None:
    records = read_metrics(shown.folder / "one" / "metrics.jsonl")
    lines = shown.one.splitlines()
    for record in records:
        epoch, loss = record["epoch"], record["loss"]
        assert f"epoch: {epoch} step: 4 loss is {loss}" in lines
        value = f"val {record['metrics']['absolute_error']['as_trained']:.4g}"
        assert f"epoch {epoch}/4  step 4  loss {loss:.4f}  lr 0.1  {value}  {record['seconds']:.1f} s" in lines
    assert re.search(r"^epoch 2/2  step 4  loss \d\.\d{4}  lr 0\.\d+  val \d\.\d+  \d+\.\d s$", shown.two, re.MULTILINE)


def test_the_callback_was_told_the_records_of_both_runs(shown: Shown) -> None:
    for name in ("one", "two"):
        assert [record for run, record in TOLD if run == name] == read_metrics(shown.folder / name / "metrics.jsonl")


def test_without_batch_norm_nothing_is_re_estimated_and_no_word_said_of_it(shown: Shown) -> None:
    result = StageTwoResult.read(shown.folder / "two" / "result.json")
    assert result.choices["average"].n_measured == len(result.choices["average"].candidates)
    assert not result.is_reestimated
    assert "BatchNorm" not in shown.one + shown.two


def test_another_loss_than_stage_1_s_is_refused_by_stage_2_and_the_comparison(shown: Shown, tmp_path: Path) -> None:
    weights = shown.folder / "one" / "checkpoint_stage_1" / "network-4_4.ckpt"
    other = ["loss=mindspore.nn:L1Loss"]
    said = r"L1Loss\", but WEIGHTS .* trained with another value; --set 'loss=\"mindspore\.nn:MSELoss\"'"
    with pytest.raises(ConfigError, match=said):
        stage_2(shown.folder, weights, out=tmp_path / "two", overrides=other)
    with pytest.raises(ConfigError, match=said):
        compare(str(shown.folder), [shown.folder / "one"], out=tmp_path / "out", overrides=other)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_methods_are_chosen_by_their_loss(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown.folder / "compared"
    methods = "last,average,stage_2"
    compare(str(shown.folder), [shown.folder / "one"], None, out, methods=methods)
    seed = json.loads((out / "compare.json").read_text())
    runs = {run["method"]: run for run in seed["runs"]}
    assert {(run["metrics"][0]["name"], run["batch_norm"]) for run in runs.values()} == {("absolute_error", False)}
    assert runs["stage_2"]["val_loss"] < runs["last"]["val_loss"]
    assert all(np.isclose(run["val"], run["val_reestimated"]) for run in runs.values())


@pytest.mark.slow
def test_the_report_tells_the_metric_and_no_accuracy(shown: Shown) -> None:
    page = report(shown.folder / "two", shown.folder / "report", 3, 1)
    text = page.read_text(encoding="utf-8")
    result = StageTwoResult.read(shown.folder / "two" / "result.json")
    assert f"<b>{result.main.at('final'):.4g}</b>" in text
    assert "absolute_error" in text
    for word in ("accuracy", "batchnorm"):
        assert word not in text.partition("Configuration and versions")[0].lower(), word
