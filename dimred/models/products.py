"""Count the matrix products and convolutions in a network's compiled graph, wherever its code computes them.

MindSpore exports the graph as MindIR, where every operator has its shapes, even one that a network calls as a function
and that belongs to no cell, such as ``q @ k``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.train import mind_ir_pb2

Shape = tuple[int, ...]


class _Operator(NamedTuple):
    """An operator in a graph."""

    inputs: Sequence[Shape]  # the shape of each input that is a tensor, or ()
    constants: Sequence[Any]  # the value of each input that is a number, or None
    output: Shape


def _of_convolution(operator: _Operator) -> int:
    """Every output number is a sum over one kernel."""
    _, weight = operator.inputs[:2]
    return math.prod(operator.output) * 2 * math.prod(weight[1:])


def _of_transposed(operator: _Operator) -> int:
    """Every input number is spread over one kernel."""
    values, weight = operator.inputs[:2]
    return math.prod(values) * 2 * math.prod(weight[1:])


def _of_product(operator: _Operator) -> int:
    """Every output number is a sum over the first matrix's last axis."""
    return math.prod(operator.output) * 2 * operator.inputs[0][-1]


def _of_product_with_transposes(operator: _Operator) -> int:
    """Every output number is a sum over a row of the first matrix, or over a column if it is transposed."""
    is_transposed = operator.constants[2]
    return math.prod(operator.output) * 2 * operator.inputs[0][-2 if is_transposed else -1]


_PRODUCTS: Mapping[str, Callable[[_Operator], int]] = {
    "BatchMatMul": _of_product_with_transposes,
    "BatchMatMulExt": _of_product,
    "Conv2D": _of_convolution,
    "Conv2DBackpropInput": _of_transposed,  # nn.Conv1dTranspose calls the gradient of a convolution
    "Conv2DTranspose": _of_transposed,
    "Conv3D": _of_convolution,
    "Conv3DTranspose": _of_transposed,
    "Dense": _of_product,
    "MatMul": _of_product_with_transposes,
    "MatMulExt": _of_product,
}


def count_products(network: nn.Cell, inputs: Sequence[Tensor]) -> int:
    """Compile a network, and count the FLOPs of its matrix products and convolutions, each multiply-add as two.

    A repeated part of the graph, such as the body of a loop, is counted once.

    Args:
        network: the network, in the mode to compile.
        inputs: its inputs.

    Raises:
        Exception: whatever MindSpore raises for a network that can't be compiled.
    """
    mode = ms.get_context("mode")
    with TemporaryDirectory() as folder:
        try:
            ms.set_context(mode=ms.GRAPH_MODE)
            ms.export(network, *inputs, file_name=f"{folder}/network", file_format="MINDIR")
        finally:
            ms.set_context(mode=mode)
        (file,) = Path(folder).rglob("*.mindir")
        model = mind_ir_pb2.ModelProto()
        model.ParseFromString(file.read_bytes())
    return sum(_of_graph(graph) for graph in (model.graph, *model.functions))


def _of_graph(graph: Any) -> int:
    """Count the products in one graph of a model."""
    shapes: dict[str, Shape] = {value.name: tuple(value.dims) for value in graph.parameter}
    shapes |= {value.name: tuple(value.tensor[0].dims) for value in graph.input if value.tensor}
    constants: dict[str, int] = {}
    n_flops = 0
    for node in graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        (output,) = node.output
        if node.op_type == "Constant":
            constants[output] = attributes["value"].i
        elif "shape" in attributes and attributes["shape"].tensors:
            shapes[output] = tuple(attributes["shape"].tensors[0].dims)
        if count := _PRODUCTS.get(_name_of(node)):
            inputs = [shapes.get(name, ()) for name in node.input]
            n_flops += count(_Operator(inputs, [constants.get(name) for name in node.input], shapes[output]))
    return n_flops


def _name_of(node: Any) -> str:
    """Return the name of a node's operator: ``MatMul`` for ``REF::MatMul:9``."""
    name: str = node.op_type.rpartition("::")[2].partition(":")[0]
    return name
