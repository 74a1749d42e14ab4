"""A cooldown keeps what has the lowest loss on val, and a killed run goes on with the losses that it measured."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from dimred.checkpoints.states import RunState
from dimred.config import StageTwoConfig
from dimred.run_files.stage_two_result import MetricResult, StageTwoResult
from dimred.runs.run import open_run
from dimred.runs.task import build_task
from dimred.stages.cooldown import CooldownPlan
from dimred.stages.parent import StageOneRun
from dimred.stages.point_files import PointFiles
from dimred.vectors.parameters import to_arrays
from tests.helpers.tiny_task import TASK

FROM_ELSEWHERE = {"rate": 0.1, "optimizer": {"name": "momentum"}}


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0, np.inf])
def test_val_chooses_between_the_end_and_what_was_best_before_also_after_a_resume(
    factor: float, tmp_path: Path
) -> None:
    config = StageTwoConfig.checked(TASK | {"method": "cooldown", "epochs": 5, "cooldown": FROM_ELSEWHERE})
    task = build_task(config, Path())
    network, last = task.network, task.network.trainable_params()[-2]
    parent, plan = StageOneRun(tmp_path / "one.ckpt", {}), CooldownPlan(config, config.cooldown)
    plan.check(task, parent, None)
    task.problems.check()
    with open_run(tmp_path / "two", task) as run:
        files, later = (
            PointFiles(tmp_path / "two" / "checkpoint_stage_2", "net", 7, keep, task.ranks) for keep in (None, 1)
        )
        method, resumed = plan.build(run, task, parent, files), plan.build(run, task, parent, later)
        result, of_resumed = (StageTwoResult(5, {}, [MetricResult(one) for one in task.metrics]) for _ in range(2))
        saved, losses = {}, []
        for point in ("start", 5):
            task.evaluator.reestimate()  # as an evaluation does before it measures
            files.save(point, list(network.get_parameters()))
            saved[str(point)] = to_arrays(network.get_parameters())
            if point == 5:
                method.measure(point)
            else:
                method.begin(result)
                method.measure(point)
            losses.append(float(task.evaluator.measure_val().losses.mean()))
            last.set_data(Tensor(last.asnumpy() * np.float32(factor)))
        kept = "5" if losses[1] < losses[0] - 1e-6 else "start"  # with a factor of 1 they differ by rounding
        assert result.choices["average"].name == "last"
        resumed.restore(RunState(*method.state(), tmp_path))
        for epoch in (6, 7):
            later.save(epoch, list(network.get_parameters()))
        names = {path.name for path in later.folder.iterdir()}
        of_choice = {"net-5_7.ckpt"} if np.isfinite(losses[1]) else set()
        assert names == {"net-start.ckpt", "net-7_7.ckpt"} | of_choice  # what val chooses from stays
        for one, its_result in ((method, result), (resumed, of_resumed)):
            last.set_data(Tensor(np.zeros(last.shape, np.float32)))
            one.finish(its_result)
            chosen = its_result.choices["kept"]
            assert (chosen.name, chosen.n_measured) == (kept, int(np.isfinite(losses[1]) or one is method))
            assert chosen.seconds > 0
            for name, value in to_arrays(network.get_parameters()).items():
                np.testing.assert_array_equal(value, saved[kept][name])
