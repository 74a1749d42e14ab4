"""A cooldown keeps what has the lowest loss on val, and a killed run goes on with the losses that it measured."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from dimred.config import StageTwoConfig
from dimred.io.stage_two_result import MetricResult, StageTwoResult
from dimred.runs.run import open_run
from dimred.runs.task import build_task
from dimred.stages.candidates import Candidates
from dimred.stages.parent import StageOneRun
from dimred.stages.point_files import PointFiles
from dimred.vectors.parameters import to_arrays
from tests.helpers.tiny_task import TASK


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0, np.inf])
def test_val_chooses_between_the_end_and_what_was_best_before_also_after_a_resume(
    factor: float, tmp_path: Path
) -> None:
    settings = StageTwoConfig.checked(TASK | {"method": "cooldown", "epochs": 5})
    task = build_task(settings, Path())
    network, last = task.network, task.network.trainable_params()[-2]
    with open_run(tmp_path / "two", task) as run:
        files = PointFiles(tmp_path / "two" / "checkpoint_stage_2", "net", 7, task.ranks)
        candidates, resumed = Candidates(run, files), Candidates(run, files)
        result = StageTwoResult(5, {}, [MetricResult(metric) for metric in task.metrics])
        saved, losses = {}, []
        for point in ("start", 5):
            task.evaluator.reestimate()  # as an evaluation does before it measures
            files.save(point, list(network.get_parameters()))
            saved[str(point)] = to_arrays(network.get_parameters())
            if point == 5:
                candidates.measure(point)
            else:
                candidates.add_best_before(StageOneRun(tmp_path / "one.ckpt", {}), result, [])
            losses.append(float(task.evaluator.measure_val().losses.mean()))
            last.set_data(Tensor(last.asnumpy() * np.float32(factor)))
        kept = "5" if losses[1] < losses[0] - 1e-6 else "start"  # with a factor of 1 they differ by rounding
        assert result.choices["average"].name == "last"
        resumed.restore(candidates.state_arrays(), candidates.state_values())
        for one in (candidates, resumed):
            last.set_data(Tensor(np.zeros(last.shape, np.float32)))
            chosen = one.put_chosen()
            assert (chosen.name, chosen.n_measured) == (kept, int(np.isfinite(losses[1]) or one is candidates))
            assert chosen.seconds > 0
            for name, value in to_arrays(network.get_parameters()).items():
                np.testing.assert_array_equal(value, saved[kept][name])
