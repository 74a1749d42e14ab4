"""Summarise a network: its layers, shapes, parameters, and the cost of one forward pass."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import Tensor, nn, ops

from dimred.errors import ConfigError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED_CONVOLUTIONS = (nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose)
Shape = tuple[int, ...]


class Layer(NamedTuple):
    """One call in a forward pass of a cell that has no cells inside."""

    name: str  # in the network
    kind: str  # its class
    input_shape: Shape  # of its first input
    output_shape: Shape
    n_parameters: int  # trainable numbers; a layer used twice counts them once
    n_other: int  # numbers that are not trained, such as BatchNorm's statistics
    flops: int  # multiplications and additions of this call; 0 for cells of kinds that ``_flops`` does not know


class Summary(NamedTuple):
    """The layers and totals of a network at one input size."""

    layers: list[Layer]  # in the order they ran
    input_shape: Shape  # of the batch
    n_parameters: int  # of the whole network, those outside any layer included
    n_other: int
    flops: int  # of all layers; operations that are computed by functions, outside any layer, are not counted


def summarise(network: nn.Cell, input_shape: Sequence[int]) -> Summary:
    """Run the network once on zeros, in evaluation mode, and record each layer.

    A multiplication and an addition count as two FLOPs; published figures of "FLOPs" often count multiply-adds, and are
    half of this. The modes of MindSpore and of each cell are restored.

    Args:
        network: takes one float32 tensor.
        input_shape: that tensor's shape, with the batch.

    Returns:
        The layers in the order they ran, and the totals of the network.

    Raises:
        ConfigError: the network can't take such an input.
    """
    layers: list[Layer] = []
    ids: set[int] = set()
    leaves = [(name or "network", cell) for name, cell in network.cells_and_names() if not cell.name_cells()]
    handles = [cell.register_forward_hook(_recorder(name, layers, ids)) for name, cell in leaves]
    mode, training = ms.get_context("mode"), [(cell, cell.training) for _, cell in network.cells_and_names()]
    try:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        network.set_train(False)
        network(ops.zeros(tuple(input_shape), ms.float32))
    except Exception as error:
        lines = (line.strip() for line in str(error).splitlines() if any(map(str.isalnum, line)))
        reason = f"{type(error).__name__}: {next(lines, '')}".removesuffix(": ")
        raise ConfigError(
            f"the network can't take one float32 input of the shape {tuple(input_shape)} ({reason}); give another "
            "--input-shape"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        for cell, was_training in training:
            cell.add_flags(training=was_training)
        ms.set_context(mode=mode)
    flops = sum(layer.flops for layer in layers)
    return Summary(layers, tuple(input_shape), *_sizes(network.get_parameters()), flops)


def memory_of_step(summary: Summary, batch_size: int) -> int:
    """Estimate how many bytes a training step takes in float32, from the summary of one sample.

    The inputs of all layers with weights are kept for the gradient, and gradients of their size are made beside them;
    weights have a gradient and a momentum. Measured on a CPU: 0.55, 1.0 and 0.40 GB, where this gives 0.54 (ResNet-18
    at 64 pixels, 128 images), 1.2 (ResNet-50 at 64 pixels, 64 images) and 0.38 GB (resnet_small, 2,048 images).

    Args:
        summary: of one sample.
        batch_size: samples in a micro-batch.
    """
    kept = sum(math.prod(layer.input_shape) for layer in summary.layers if layer.n_parameters)
    return 4 * (2 * batch_size * kept + 3 * summary.n_parameters)


def _recorder(name: str, layers: list[Layer], ids: set[int]) -> Callable[..., None]:
    """Return a forward hook that appends a layer to ``layers``, without the parameters whose ids ``ids`` holds."""

    def hook(cell: nn.Cell, inputs: tuple[Any, ...], output: Any) -> None:
        parameters = [parameter for parameter in cell.get_parameters() if id(parameter) not in ids]
        ids.update(id(parameter) for parameter in parameters)
        input_shape, output_shape = _shape(inputs), _shape(output)
        flops = _flops(cell, input_shape, output_shape)
        layers.append(Layer(name, type(cell).__name__, input_shape, output_shape, *_sizes(parameters), flops))

    return hook


def _sizes(parameters: Iterable[ms.Parameter]) -> tuple[int, int]:
    """Count the numbers in trainable and in other parameters."""
    sizes = [(parameter.size, parameter.requires_grad) for parameter in parameters]
    return sum(size for size, trains in sizes if trains), sum(size for size, trains in sizes if not trains)


def _shape(values: Any) -> Shape:
    """Return the shape of the first tensor in nested tuples."""
    while isinstance(values, tuple | list) and values:
        values = values[0]
    return tuple(values.shape) if isinstance(values, Tensor) else ()


def _flops(cell: nn.Cell, input_shape: Shape, output_shape: Shape) -> int:
    """Count the multiplications and additions of one call; 0 for kinds of cells that are not known here."""
    n_inputs, n_outputs = math.prod(input_shape), math.prod(output_shape)
    if isinstance(cell, _CONVOLUTIONS):  # every output number is a sum over one kernel
        return n_outputs * (2 * cell.weight.size // cell.out_channels) + _bias(cell, n_outputs)
    if isinstance(cell, _TRANSPOSED_CONVOLUTIONS):  # every input number is spread over one kernel
        return n_inputs * (2 * cell.weight.size // cell.in_channels) + _bias(cell, n_outputs)
    if isinstance(cell, nn.Dense):
        return n_outputs * 2 * cell.in_channels + _bias(cell, n_outputs)
    if isinstance(cell, nn.LayerNorm | nn.GroupNorm) or hasattr(cell, "moving_mean"):  # of every BatchNorm
        return 2 * n_outputs  # scale and shift
    if isinstance(cell, nn.AvgPool1d | nn.AvgPool2d):
        return n_inputs
    return 0


def _bias(cell: nn.Cell, n_outputs: int) -> int:
    return n_outputs if cell.has_bias else 0
