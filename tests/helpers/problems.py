"""Batches, some of which overflow, and a step's whole state, for the tests of the step's parts."""

from collections import Counter
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common.api import _cell_graph_executor
from mindspore.train.anf_ir_pb2 import ModelProto

from tests.helpers.networks import image_batch

RATES = [0.05, 0.04, 0.03, 0.02, 0.01, 0.01]


def batches(n: int, rows: int = 8, seed: int = 4) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.standard_normal((rows, width)).astype(np.float32) for width in (3, 2)) for _ in range(n)]


def tensors(batch: tuple[np.ndarray, ...]) -> tuple[Tensor, ...]:
    return tuple(Tensor(part) for part in batch)


def values(step: nn.Cell) -> dict[str, np.ndarray]:
    """Return every parameter of a step: weights, statistics, optimizer state, EMA, loss scale."""
    return {parameter.name: parameter.asnumpy().copy() for parameter in step.get_parameters()}


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    """Return the names of the values whose bytes differ."""
    return {name for name in before if before[name].tobytes() != after[name].tobytes()}


def overflowing(seed: int) -> tuple[Tensor, Tensor]:
    """Make an image batch with two numbers that float16 can't hold."""
    images, labels = image_batch(seed)
    poisoned = images.asnumpy().copy()
    poisoned[2, 0, 3, 3], poisoned[3, 0, 3, 3] = 3e38, -3e38
    return Tensor(poisoned), labels


def primitives(cell: nn.Cell) -> Counter[str]:
    """Count the primitives in the compiled graph of a cell by name; the cell must have been called, in graph mode."""
    return Counter(node.op_type.rpartition("::")[2] for node in _nodes(cell))


def fusion_groups(cell: nn.Cell) -> list[int]:
    """Return the number of the group of each all-reduce in the compiled graph of a cell, sorted; 0 for none."""
    all_reduces = (node for node in _nodes(cell) if node.op_type.endswith("AllReduce"))
    groups = ({one.name: one.value.int_val for one in node.attribute}.get("fusion", 0) for node in all_reduces)
    return sorted(groups)


def _nodes(cell: nn.Cell) -> Any:
    (phase,) = cell.compile_cache
    model = ModelProto()
    model.ParseFromString(_cell_graph_executor._graph_executor.get_func_graph_proto(phase, "anf_ir", False))
    return model.graph.node


class BareStep(nn.Cell):
    """A training step that has a gradient and an optimizer, but no other part."""

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer):
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.gradient = ops.value_and_grad(network, None, optimizer.parameters)

    def construct(self, *inputs: Tensor) -> Tensor:
        loss, gradients = self.gradient(*inputs)
        return ops.depend(loss, self.optimizer(gradients))
