"""Loss and gradient of a batch, whole or by micro-batches."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import ConfigError, check_number
from dimred.train_step.loss_scale import NoLossScale
from dimred.train_step.network_state import GroupStatistics
from dimred.vectors.chunks import Parts
from dimred.vectors.host_memory import HostVectors, on_host
from dimred.vectors.weight_vector import along, gather


class MicroBatch(NamedTuple):
    """One piece of a batch.

    Attributes:
        inputs: the network's inputs, each with this piece's rows.
        share: its rows by the whole batch's; the shares of a batch sum to 1.
    """

    inputs: tuple[Tensor, ...]
    share: float


def cut(inputs: Sequence[Tensor], rows: int | None) -> list[MicroBatch]:
    """Cut a batch into micro-batches of ``rows`` rows; the last one may have fewer.

    Args:
        inputs: the network's inputs; their first dimension counts the rows.
        rows: None for the whole batch in one piece.

    Raises:
        ConfigError: an input has no rows, or another number of them.
    """
    if rows is None:
        return [MicroBatch(tuple(inputs), 1.0)]
    shapes = [tuple(value.shape) for value in inputs]
    if not shapes or any(not shape or shape[0] != shapes[0][0] or shape[0] == 0 for shape in shapes):
        raise ConfigError(
            f"micro_batch_size is {rows}, but the step's inputs have the shapes {shapes}; to be cut into micro-batches "
            "they must all have the same number of rows in their first dimension"
        )
    n_rows = shapes[0][0]
    if rows >= n_rows:
        return [MicroBatch(tuple(inputs), 1.0)]
    return [
        MicroBatch(tuple(value[first : first + rows] for value in inputs), min(rows, n_rows - first) / n_rows)
        for first in range(0, n_rows, rows)
    ]


class BatchGradient(nn.Cell):
    """Inputs -> loss () float32, and a tuple of unscaled float32 gradients in the parameters' shapes.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        parameters: those to differentiate by.
        loss_scale: what the loss is multiplied with before its gradient is taken.
    """

    def __init__(self, network: nn.Cell, parameters: Sequence[Parameter], loss_scale: NoLossScale | None = None):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = ms.ParameterTuple(parameters)
        self.loss_scale = NoLossScale() if loss_scale is None else loss_scale
        self.gradient = ops.value_and_grad(_ScaledLoss(network, self.loss_scale), None, self.weights, has_aux=True)
        self.all_float32 = all(parameter.dtype == ms.float32 for parameter in parameters)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        values, gradients = self.gradient(*inputs)
        gradients = self.loss_scale.unscaled(gradients)
        # A graph that touches each gradient, if only for a cast that does nothing, holds 3.5 times all of them more.
        if not self.all_float32:
            gradients = tuple([gradient.astype(ms.float32) for gradient in gradients])
        return values[1], gradients


class _ScaledLoss(nn.Cell):
    """The loss S f, and f itself."""

    def __init__(self, network: nn.Cell, loss_scale: NoLossScale):
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss_scale = loss_scale

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        loss = self.network(*inputs).astype(ms.float32)
        return self.loss_scale.scaled(loss), loss


class GroupGradient:
    """Mean loss and mean gradient of a group of micro-batches, as if it were one batch.

    loss = sum_i share_i f(w; B_i);  gradient = sum_i share_i grad f(w; B_i);  share_i = rows of B_i / rows of the group

    The sums are float32, on the device. BatchNorm normalises each micro-batch by itself, and its moving statistics are
    moved once for the group (see ``GroupStatistics``). Driven from the host, over one small graph for each micro-batch.

    Args:
        gradient: loss and gradient of a micro-batch.
        rows: of a micro-batch; None takes every group whole, at no cost.
        draw_dropout_masks: called with the micro-batch's number before each forward pass.

    Raises:
        ConfigError: ``rows`` outside its range.
    """

    def __init__(
        self,
        gradient: BatchGradient,
        rows: int | None,
        draw_dropout_masks: Callable[[int], None] | None = None,
    ):
        if rows is not None:
            check_number("micro_batch_size", rows, at_least=1, whole=True)
        self._loss = _Loss(gradient.network)
        self._gradient = _HostGradient(gradient) if on_host() else _FlatGradient(gradient)
        self._statistics = GroupStatistics(gradient.network)
        self._rows = rows
        self._draw_dropout_masks = draw_dropout_masks or _leave

    def loss(self, inputs: Sequence[Tensor]) -> Tensor:
        """Mean loss, () float32. Moves BatchNorm's statistics, as any training forward pass does."""
        pieces = cut(inputs, self._rows)
        total = None
        for number, piece in enumerate(pieces):
            self._draw_dropout_masks(number)
            loss = self._loss(*piece.inputs)
            if len(pieces) == 1:
                return loss
            total = loss * piece.share if total is None else along(total, loss, piece.share)
        return total

    def loss_and_gradient(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Mean loss, () float32, and mean gradient, (M,) float32 in the parameters' order."""
        pieces = cut(inputs, self._rows)
        if len(pieces) == 1:
            self._draw_dropout_masks(0)
            return self._gradient(*pieces[0].inputs)
        loss = vector = None
        self._statistics.begin()
        for number, piece in enumerate(pieces):
            self._draw_dropout_masks(number)
            piece_loss, piece_vector = self._gradient(*piece.inputs)
            self._statistics.take(piece.share)
            loss = piece_loss * piece.share if loss is None else along(loss, piece_loss, piece.share)
            vector = piece_vector * piece.share if vector is None else along(vector, piece_vector, piece.share)
        self._statistics.end()
        return loss, vector


class _Loss(nn.Cell):
    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.network(*inputs).astype(ms.float32)


class _HostGradient:
    """``_FlatGradient`` where NumPy can join the gradients; the graph would hold 3.4 times all of them for that."""

    def __init__(self, gradient: BatchGradient):
        self._gradient = gradient
        self._parts = Parts([parameter.size for parameter in gradient.weights])
        self._vectors = HostVectors(self._parts.length)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradients = self._gradient(*inputs)
        vector = self._vectors.empty()
        arrays = [value.asnumpy().reshape(-1) for value in gradients]
        self._parts.each(arrays, lambda piece, first, end: np.copyto(vector[first:end], piece))
        return loss, Tensor.from_numpy(vector)


class _FlatGradient(nn.Cell):
    def __init__(self, gradient: BatchGradient):
        super().__init__(auto_prefix=False)
        self.gradient = gradient

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradients = self.gradient(*inputs)
        return loss, gather(gradients)


def _leave(number: int) -> None:
    """Dropout draws its own masks."""
