"""What stage 2 writes into its result: metrics of any name, and the best average beside a last network."""

import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.states import RunStates
from dimred.errors import ConfigError
from dimred.io.checksums import write_checksummed
from dimred.io.metrics_file import read_metrics
from dimred.io.stage_two_result import StageTwoResult
from dimred.report.record import read_stage_2
from dimred.stages.candidates import BestAverage
from tests.helpers.finished_stage_1 import settings
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import dying, stage_2_run


def hits() -> Callable[[Tensor, Tensor], np.ndarray]:
    return lambda outputs, labels: (outputs.asnumpy().argmax(1) == labels.asnumpy()).astype(np.float32)


def test_without_a_choice_the_best_average_is_looked_for_at_the_end_and_told_with_its_cost(
    checkpoints: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights are so far off that an average is better; a kill meanwhile changes nothing."""
    one = tmp_path / "one" / "checkpoint_stage_1"
    shutil.copytree(checkpoints.parent, tmp_path / "one")
    weights, arrays = one / "network-2_4.ckpt", read_checkpoint(one / "network-2_4.ckpt")
    names = list(read_checkpoint(one / "checkpoint_pca" / weights.name))
    write_checkpoint(weights, arrays | {name: arrays[name] + 5 for name in names})
    run = stage_2_run(settings(keep_best=False), weights)
    for name in ("whole", "killed"):
        with dying(BestAverage, "save_if_better") if name == "killed" else nullcontext():
            run(tmp_path / name, False)
    run(tmp_path / "killed", True)
    assert not differences(results(tmp_path / "killed"), results(tmp_path / "whole"))
    folder, result = tmp_path / "whole" / "checkpoint_stage_2", StageTwoResult.read(tmp_path / "whole" / "result.json")
    last, kept, average = (read_checkpoint(folder / f"network-{point}.ckpt") for point in ("1_4", "final", "average"))
    np.testing.assert_array_equal(kept["0.weight"], last["0.weight"])
    mean = np.mean([read_checkpoint(path)["0.weight"] for path in (one / "checkpoint_pca").glob("*.ckpt")], axis=0)
    np.testing.assert_allclose(average["0.weight"], mean, rtol=1e-6)
    choice = result.choices["best_average"]
    assert [one["name"] for one in choice.candidates] == ["final", "uniform of 2 snapshots, steps 4 to 8"]
    assert (choice.n_measured, choice.name) == (2, "uniform of 2 snapshots, steps 4 to 8")
    assert result.choosing_passes("best_average") > 0
    assert result.passes == 1  # the network was not chosen by it
    said = caplog.text[caplog.text.index("the best average of the snapshots is better on 'val' than this network") :]
    assert f"To take it, use {folder / 'network-average.ckpt'}" in said


@pytest.mark.parametrize("name", ["moved_inside", "accepted_steps", "loss", "epoch"])
def test_a_metric_may_have_any_name(name: str, checkpoints: Path, tmp_path: Path) -> None:
    """Once these replaced a total of the result, or a number of the record."""
    module = "names_of_metrics"
    (tmp_path / f"{module}.py").write_text(f"from tests.stages.test_stage_2_result import hits as {name}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        sys.modules.pop(module, None)
        own = settings(metric=f"{module}:{name}", keep_best=False)
        stage_2_run(own, checkpoints / "network-2_4.ckpt")(tmp_path / "two", False)
    result = StageTwoResult.read(tmp_path / "two" / "result.json")
    [record] = read_metrics(tmp_path / "two" / "metrics.jsonl")
    assert record["metrics"] == {name: result.main.by_point["1"]}
    assert (record["epoch"], record["step"], result.steps) == (1, 4, 4)
    assert record["loss"] != record["metrics"][name]["as_trained"]


def test_a_state_or_a_result_of_another_version_says_what_it_is(checkpoints: Path, tmp_path: Path) -> None:
    finished, run = tmp_path / "two", stage_2_run(settings(), checkpoints / "network-2_4.ckpt")
    run(finished, False)
    state = RunStates(finished).newest(pytest.fail)
    values = {key: value for key, value in state.values.items() if key != "layout"}
    RunStates(finished).save(state.step, state.arrays, values)
    before = results(finished)
    with pytest.raises(ConfigError, match=r"state-4\.ckpt was saved by another version of dimred.* begin a new run"):
        run(finished, True)
    assert not differences(results(finished), before)
    write_checksummed(finished / "result.json", {"metric": "accuracy", "accuracy": 0.5, "steps": 4})
    with pytest.raises(ConfigError, match=r"result\.json holds the result of a stage 2 that another version of dimred"):
        read_stage_2(finished)
