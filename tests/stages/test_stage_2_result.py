"""What stage 2 writes into its result: metrics of any name."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from dimred.run_files.metrics_file import read_metrics
from dimred.run_files.stage_two_result import StageTwoResult
from tests.helpers.finished_stage_1 import config_with
from tests.helpers.tiny_run import stage_2_run


def hits() -> Callable[[Tensor, Tensor], np.ndarray]:
    return lambda outputs, labels: (outputs.asnumpy().argmax(1) == labels.asnumpy()).astype(np.float32)


@pytest.mark.parametrize("name", ["accepted_steps", "loss"])
def test_a_metric_may_have_any_name(name: str, checkpoints: Path, tmp_path: Path) -> None:
    """Once these replaced a total of the result, or a number of the record."""
    module = "names_of_metrics"
    (tmp_path / f"{module}.py").write_text(f"from tests.stages.test_stage_2_result import hits as {name}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        sys.modules.pop(module, None)
        own = config_with(metric=f"{module}:{name}", cooldown={"keep_best": False})
        stage_2_run(own, checkpoints / "network-2_4.ckpt")(tmp_path / "two", False)
    result = StageTwoResult.read(tmp_path / "two" / "result.json")
    [record] = read_metrics(tmp_path / "two" / "metrics.jsonl")
    assert record["metrics"] == {name: result.main.by_point["1"]}
    assert (record["epoch"], record["step"], result.steps) == (1, 4, 4)
    assert record["loss"] != record["metrics"][name]["as_trained"]
