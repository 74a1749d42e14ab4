"""Summarise a network: its layers, shapes, parameters, and the cost of one forward pass."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import Tensor, nn, ops

from dimred.errors import ConfigError, number_of
from dimred.models.products import count_products

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED_CONVOLUTIONS = (nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose)
_ATTENTIONS = (nn.MultiheadAttention,)
Shape = tuple[int, ...]


class Input(NamedTuple):
    """The shape and type of a network's input."""

    shape: Shape  # with the batch
    type: str = "float32"  # the name of a MindSpore type


class Layer(NamedTuple):
    """One call, in a forward pass, of a cell without cells inside, or of an attention."""

    name: str  # in the network
    kind: str  # its class
    input_shape: Shape  # of its first input
    output_shape: Shape
    n_parameters: int  # trainable numbers; a layer used twice counts them once
    n_other: int  # numbers that are not trained, such as BatchNorm's statistics
    product_flops: int  # multiplications and additions in this call's matrix products and convolutions
    flops: int  # everything in this call; 0 for unknown kinds of cell


class Summary(NamedTuple):
    """A network's layers and totals at one input size."""

    layers: list[Layer]  # in the order they ran
    inputs: tuple[Input, ...]
    n_parameters: int  # in the whole network, including parameters outside any layer
    n_other: int
    flops: int  # in all layers, and in functions if they were counted
    function_flops: int | None = None  # in matrix products outside the layers; None if they were not counted
    not_counted: str = ""  # why ``function_flops`` could not be counted


def summarise(network: nn.Cell, *inputs: Sequence[int] | Input, count_functions: bool = False) -> Summary:
    """Run the network once on zeros, in evaluation mode, and record each layer.

    A multiplication and an addition count as two FLOPs; published "FLOPs" are often multiply-adds, half as many.
    MindSpore's mode and each cell's mode are restored.

    Args:
        network: the network.
        inputs: its inputs, each a float32 shape with the batch, or an ``Input``.
        count_functions: whether to compile the network too, and count matrix products that belong to no layer because
            the network calls them as functions, such as ``q @ k``.

    Returns:
        The layers in the order they ran, and the network's totals.

    Raises:
        ConfigError: the network can't take such inputs.
    """
    wanted = tuple(given if isinstance(given, Input) else Input(tuple(given)) for given in inputs)
    zeros = [ops.zeros(given.shape, getattr(ms, given.type)) for given in wanted]
    layers: list[Layer] = []
    ids: set[int] = set()
    handles = [cell.register_forward_hook(_recorder(name, layers, ids)) for name, cell in _layers_of(network)]
    mode = ms.get_context("mode")
    training = [(cell, cell.training) for _, cell in network.cells_and_names()]
    function_flops = None
    not_counted = ""
    try:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        network.set_train(False)
        network(*zeros)
        for handle in handles:
            handle.remove()
        if count_functions:
            function_flops, not_counted = _flops_of_functions(network, zeros, layers)
    except Exception as error:
        described = " and ".join(f"{given.type} {given.shape}" for given in wanted)
        raise ConfigError(
            f"the network can't take {number_of(len(wanted), 'input')}, {described} ({_first_line(error)}); give its "
            "inputs with --input [TYPE:]SHAPE, once for each"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        for cell, was_training in training:
            cell.add_flags(training=was_training)
        ms.set_context(mode=mode)
    flops = sum(layer.flops for layer in layers) + (function_flops or 0)
    return Summary(layers, wanted, *_sizes(network.get_parameters()), flops, function_flops, not_counted)


def _layers_of(network: nn.Cell) -> list[tuple[str, nn.Cell]]:
    """Return the cells to list, with their names: cells without cells inside, and attentions as a whole."""
    cells = [(name or "network", cell) for name, cell in network.cells_and_names()]
    inner = {
        id(part)
        for _, cell in cells
        if isinstance(cell, _ATTENTIONS)
        for _, part in cell.cells_and_names()
        if part is not cell
    }
    return [
        (name, cell)
        for name, cell in cells
        if id(cell) not in inner and (isinstance(cell, _ATTENTIONS) or not cell.name_cells())
    ]


def _flops_of_functions(network: nn.Cell, zeros: list[Tensor], layers: list[Layer]) -> tuple[int | None, str]:
    """Count the compiled network's products outside its layers; or return why that failed."""
    try:
        n_products = count_products(network, zeros)
    except Exception as error:
        return None, _first_line(error)
    return n_products - sum(layer.product_flops for layer in layers), ""


def _first_line(error: Exception) -> str:
    """Return an error's type and the first line of its text with a letter or digit."""
    lines = (line.strip() for line in str(error).splitlines() if any(map(str.isalnum, line)))
    return f"{type(error).__name__}: {next(lines, '')}".removesuffix(": ")


def memory_of_step(summary: Summary, batch_size: int) -> int:
    """Estimate how many bytes a training step takes in float32, from a one-sample summary.

    The inputs of all layers with weights are kept for the gradient, next to gradients of the same size; weights have a
    gradient and a momentum. Measured on a CPU: 0.55, 1.0 and 0.40 GB, where this gives 0.54 (ResNet-18
    at 64 pixels, 128 images), 1.2 (ResNet-50 at 64 pixels, 64 images) and 0.38 GB (resnet_small, 2,048 images).

    Args:
        summary: the network's summary for one sample.
        batch_size: samples in a micro-batch.
    """
    kept = sum(math.prod(layer.input_shape) for layer in summary.layers if layer.n_parameters)
    return 4 * (2 * batch_size * kept + 3 * summary.n_parameters)


def _recorder(name: str, layers: list[Layer], ids: set[int]) -> Callable[..., None]:
    """Return a forward hook that appends a layer to ``layers``, leaving out parameters with an id in ``ids``."""

    def hook(cell: nn.Cell, inputs: tuple[Any, ...], output: Any) -> None:
        parameters = [parameter for parameter in cell.get_parameters() if id(parameter) not in ids]
        ids.update(id(parameter) for parameter in parameters)
        input_shape = _shape(inputs)
        output_shape = _shape(output)
        products = _products(cell, inputs, output_shape)
        flops = products + _others(cell, input_shape, output_shape)
        sizes = _sizes(parameters)
        layers.append(Layer(name, type(cell).__name__, input_shape, output_shape, *sizes, products, flops))

    return hook


def _sizes(parameters: Iterable[ms.Parameter]) -> tuple[int, int]:
    """Count the numbers in trainable parameters, and in others."""
    sizes = [(parameter.size, parameter.requires_grad) for parameter in parameters]
    return sum(size for size, trains in sizes if trains), sum(size for size, trains in sizes if not trains)


def _shape(values: Any) -> Shape:
    """Return the shape of the first tensor in nested tuples."""
    while isinstance(values, tuple | list) and values:
        values = values[0]
    return tuple(values.shape) if isinstance(values, Tensor) else ()


def _products(cell: nn.Cell, inputs: tuple[Any, ...], output_shape: Shape) -> int:
    """Count the multiplications and additions in one call's matrix products and convolutions."""
    n_inputs = math.prod(_shape(inputs))
    n_outputs = math.prod(output_shape)
    if isinstance(cell, _CONVOLUTIONS):  # every output number is a sum over one kernel
        return n_outputs * (2 * cell.weight.size // cell.out_channels)
    if isinstance(cell, _TRANSPOSED_CONVOLUTIONS):  # every input number is spread over one kernel
        return n_inputs * (2 * cell.weight.size // cell.in_channels)
    if isinstance(cell, nn.Dense):
        return n_outputs * 2 * cell.in_channels
    if isinstance(cell, _ATTENTIONS):
        return _products_of_attention(cell, *(tuple(tensor.shape) for tensor in inputs[:3]))
    return 0


def _products_of_attention(cell: nn.MultiheadAttention, query: Shape, key: Shape, value: Shape) -> int:
    """Count an attention's products: its inputs' three projections, q k', the weights times v, and the output.

    Args:
        cell: the attention, with width E.
        query: shape of the queries: (L, N, E); (N, L, E) with ``batch_first``; or (L, E).
        key, value: shapes of keys and values, with S in place of L, and their own widths.
    """
    width = cell.embed_dim
    axis = int(cell.batch_first and len(query) == 3)
    n_queries = math.prod(query[:-1])
    n_keys = key[axis]
    inputs_and_output = math.prod(query) + math.prod(key) + math.prod(value) + n_queries * width
    return 2 * width * inputs_and_output + 2 * 2 * n_queries * n_keys * width


def _others(cell: nn.Cell, input_shape: Shape, output_shape: Shape) -> int:
    """Count the multiplications and additions of one call outside its products; 0 for unknown kinds of cell."""
    n_outputs = math.prod(output_shape)
    if isinstance(cell, (*_CONVOLUTIONS, *_TRANSPOSED_CONVOLUTIONS, nn.Dense)):
        return n_outputs if cell.has_bias else 0
    if isinstance(cell, nn.LayerNorm | nn.GroupNorm) or hasattr(cell, "moving_mean"):  # every BatchNorm has one
        return 2 * n_outputs  # scale and shift
    if isinstance(cell, nn.AvgPool1d | nn.AvgPool2d):
        return math.prod(input_shape)
    return 0
