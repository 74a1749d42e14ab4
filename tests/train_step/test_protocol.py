"""Both steps keep the protocol that a run relies on."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import nn
from mypy import api as mypy

from dimred.search_step.direction import InverseBFGS
from dimred.search_step.line_search import ArmijoBacktracking
from dimred.search_step.search_step import SearchStep
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale
from dimred.train_step.part import StepPart
from dimred.train_step.protocol import Step
from dimred.train_step.step import TrainStep
from tests.helpers.networks import BatchNormNet, image_batch, orthonormal_rows, weight_vector
from tests.helpers.problems import changed, values


def parts(network: nn.Cell) -> list[StepPart]:
    return [EMA(network, 0.9), Clipping(1.0), DynamicLossScale(1024.0, window=2)]


def train_step() -> TrainStep:
    network = BatchNormNet()
    return TrainStep(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), parts=parts(network))


def search_step() -> SearchStep:
    network = BatchNormNet()
    rows, search = orthonormal_rows(4, len(weight_vector(network))), ArmijoBacktracking(0.5, 0.1, 9)
    return SearchStep(network, rows, InverseBFGS(4), search, parts=parts(network))


@pytest.mark.parametrize("make", [train_step, search_step])
def test_a_step_goes_on_from_its_state_byte_for_byte_and_its_results_have_records(make, pynative) -> None:
    step, resumed = make(), make()
    assert isinstance(step, Step)
    for number in range(3):
        step(*image_batch(number))
    resumed.restore(step.state(), "the state")
    for number in range(3, 6):
        one, other = step(*image_batch(number)), resumed(*image_batch(number))
        record = one.record()
        assert record["loss"] == float(one.loss.asnumpy()) == other.record()["loss"]
        assert {"loss", "grad_norm", "loss_scale", "n_overflows"} <= record.keys()
        assert all(isinstance(value, bool | int | float | str | list | dict) for value in record.values())
    assert changed(values(step), values(resumed)) == set()
    state = step.state()
    assert state.keys() == resumed.state().keys()
    for name, value in resumed.state().items():
        np.testing.assert_array_equal(value, state[name], err_msg=name)


ROOT = Path(__file__).parents[2]
TYPED = """
from typing import Any
from mindspore import Tensor
from dimred.search_step.search_step import SearchStep
from dimred.train_step.part import GradientPart, StepPart
from dimred.train_step.protocol import Step
from dimred.train_step.step import TrainStep

class Own({base}):
    name = "own"
    {member}

def use(own: Own) -> list[{protocol}]:
    return [own]
"""
CONSTRUCT = "def construct(self, gradients: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]: ..."
RESTORE = "def restore(self, arrays: int, source: str) -> None: ...  # type: ignore[override]"
CASES: list[tuple[str, str, str | None]] = [
    ("GradientPart", "pass", None),
    ("GradientPart", CONSTRUCT, 'Argument 1 of "construct" is incompatible with supertype'),
    ("GradientPart", "telemetry: int = 1", "incompatible type"),
    ("object", "pass", 'List item 0 has incompatible type "Own"; expected "StepPart"'),
]
for step in ("TrainStep", "SearchStep"):
    CASES.append((step, "pass", None))
    for member in ("state: int = 1  # type: ignore[assignment]", RESTORE):
        CASES.append((step, member, 'incompatible type "Own"; expected "Step"'))


def test_mypy_holds_steps_and_parts_against_their_protocols(tmp_path: Path) -> None:
    files = [tmp_path / f"case_{number}.py" for number in range(len(CASES))]
    for file, (base, member, _) in zip(files, CASES, strict=True):
        protocol = "Step" if base.endswith("Step") else "StepPart"
        file.write_text(TYPED.format(base=base, member=member, protocol=protocol))
    said, faults, _ = mypy.run(["--config-file", str(ROOT / "pyproject.toml"), *map(str, files)])
    assert faults == ""
    for file, (_, _, fault) in zip(files, CASES, strict=True):
        lines = "\n".join(line for line in said.splitlines() if f"{file.name}:" in line)
        assert (lines == "") == (fault is None), said
        assert fault is None or fault.lower() in lines.lower(), said
