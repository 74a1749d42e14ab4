"""The checks of ``dimred doctor --full`` notice a machine that computes something else."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from mindspore import ops

from dimred.distributed.ranks import ALONE
from dimred.proof.checks import CHECKS, kernels, prove, search_step, training_step
from dimred.proof.difference import Difference

WRONG = 1 + 1e-3  # as far as TF32 is from float32


@pytest.mark.parametrize(
    ("name", "check", "wrong"),
    [
        (None, kernels, set()),
        ("matmul", kernels, {"matrix product"}),
        (
            "conv2d",
            kernels,
            {f"convolution{part}" for part in ("", *(f", gradient of its {x}" for x in ("input", "weights")))},
        ),
        (None, training_step, set()),
        ("tanh", training_step, {"losses", "weights", "moving average"}),
        (None, search_step, set()),
        ("tanh", search_step, {"losses", "weights after each step"}),
    ],
)
def test_a_kernel_that_is_slightly_wrong_is_noticed(
    name: str | None,
    check: Callable[[], list[Difference]],
    wrong: set[str],
    monkeypatch: pytest.MonkeyPatch,
    pynative: None,
) -> None:
    if name is not None:
        right = getattr(ops, name)
        monkeypatch.setattr(ops, name, lambda *inputs: right(*inputs) * WRONG)
    assert {one.name for one in check() if not one.is_right} == wrong


def test_a_number_that_is_not_finite_is_wrong() -> None:
    assert not Difference("losses", float("nan"), 1.0).is_right


def test_a_check_that_raises_leaves_the_others_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no kernel")

    answers = dict.fromkeys(CHECKS, broken) | {"whole": lambda: [Difference("zero", 0.0, 0.0)]}
    monkeypatch.setattr("dimred.proof.checks.CHECKS", answers)
    found = json.loads(prove(ALONE))
    assert len(found) == 2 * len(answers)
    assert found["kernels beside NumPy, graph"] == "RuntimeError: no kernel"
    assert found["whole, pynative"] == [["zero", 0.0, 0.0]]
