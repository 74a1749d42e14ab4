"""Compute a batch's loss and gradient in micro-batches, and finish such a step."""

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Parameter, Tensor, mint, nn

from dimred.errors import ConfigError, check_number, shown
from dimred.train_step.finish import Finish
from dimred.train_step.gradient import BatchGradient, VectorGradient
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.weights import Unflatten, Vectors, make_vectors


class GroupGradient(VectorGradient):
    """The loss and gradient of a group of micro-batches, as if it were one batch.

    Micro-batch B_i has the weight w_i, the number of items per row in its mean (see ``WeightedLoss``). With
    a_i = rows of B_i / rows of the group::

        loss = sum_i a_i w_i f(B_i);   gradient = sum_i a_i w_i grad f(B_i);   weight = sum_i a_i w_i

    Divided by the weight, these are the whole batch's loss and gradient. They are divided once, after they are averaged
    over the ranks. The sums are float32. The host calls one small graph for each micro-batch.

    BatchNorm normalises each micro-batch separately, but moves its statistics once per group. Each micro-batch starts
    from the statistics before the group, r, and its forward pass leaves r + c (b_i - r), where b_i is the micro-batch's
    mean or variance. The group leaves the mean of these, r + c (mean(b_i) - r).

    Args:
        gradient, vectors, draw_dropout_masks: as for ``VectorGradient``.
        rows: rows per micro-batch.

    Raises:
        ConfigError: ``rows`` is below 1, or the network has a ``mindspore.mint`` BatchNorm.
    """

    def __init__(
        self,
        gradient: BatchGradient,
        vectors: Vectors,
        rows: int,
        draw_dropout_masks: Callable[[int], object] = lambda number: None,
    ):
        super().__init__(gradient, vectors, draw_dropout_masks)
        check_number("micro_batch_size", rows, at_least=1, whole=True)
        self._rows = int(rows)  # MindSpore can't slice with NumPy integers
        moving = moving_statistics(gradient.loss.network)
        self._statistics = make_vectors(moving) if moving else None

    def loss(self, inputs: Sequence[Tensor], number: int = 0) -> tuple[Tensor, Tensor]:
        """Return the loss times the weight, and the weight; see ``VectorGradient.loss``.

        Raises:
            ConfigError: the inputs can't be cut; see ``_cut``.
        """
        batches = _cut(inputs, self._rows)
        if len(batches) == 1:
            return super().loss(inputs)
        total: Any = None
        weight: Any = None
        for number, (part, fraction) in enumerate(batches):
            loss, batch_weight = super().loss(part, number)
            total = _plus(total, loss, fraction)
            weight = _plus(weight, batch_weight, len(part[0]))
        return total, weight / len(inputs[0])

    def loss_and_gradient(self, inputs: Sequence[Tensor], number: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss and the gradient, each times the weight, and the weight; raises as ``loss`` does."""
        batches = _cut(inputs, self._rows)
        statistics = self._statistics
        if len(batches) == 1:
            return super().loss_and_gradient(inputs)
        before = None if statistics is None else statistics.read()
        loss = vector = after = None
        weight: Any = None
        for number, (part, fraction) in enumerate(batches):
            batch_loss, batch_vector, batch_weight = super().loss_and_gradient(part, number)
            if statistics is not None:
                after = _plus(after, statistics.read(), fraction)
                statistics.put((1.0, before))
            loss = _plus(loss, batch_loss, fraction)
            vector = _plus(vector, batch_vector, fraction)
            weight = _plus(weight, batch_weight, len(part[0]))  # counts, not fractions: n weights of 1 add up to n
        if statistics is not None:
            statistics.put((1.0, after))
        return loss, vector, weight / len(inputs[0])


def _plus(total: Tensor | None, value: Tensor, fraction: float) -> Tensor:
    """Return ``total + fraction * value``, in one kernel, or ``fraction * value`` if ``total`` is None."""
    return value * fraction if total is None else mint.add(total, value, alpha=fraction)


def _cut(inputs: Sequence[Tensor], rows: int) -> list[tuple[tuple[Tensor, ...], float]]:
    """Cut a batch into micro-batches of ``rows`` rows; the last one may have fewer.

    Args:
        inputs: the network's inputs; their first dimension counts the rows.
        rows: rows per micro-batch.

    Returns:
        For each micro-batch, its rows of each input, and its fraction of the batch's rows; the fractions sum to 1.

    Raises:
        ConfigError: an input is not a tensor, has no rows, or has a different number of rows from the others.
    """
    rows_of_inputs = {value.shape[0] if isinstance(value, Tensor) and value.ndim > 0 else 0 for value in inputs}
    if len(rows_of_inputs) != 1 or 0 in rows_of_inputs:
        given = " and ".join(str(value.shape) if isinstance(value, Tensor) else shown(value) for value in inputs)
        raise ConfigError(
            f"micro_batch_size is {rows}, but the step's inputs are {given or 'none'}; to be cut into micro-batches "
            "they must be tensors with the same number of rows: pass anything else when the network is made",
            argument="micro_batch_size",
        )
    [n_rows] = rows_of_inputs
    return [
        (tuple(value[first : first + rows] for value in inputs), min(rows, n_rows - first) / n_rows)
        for first in range(0, n_rows, rows)
    ]


class FinishVector(nn.Cell):
    """A cell that calls ``Finish`` with a gradient vector (M,); with votes, the tally precedes ``untrained_values``."""

    def __init__(self, finish: Finish, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.finish = finish
        self.unflatten = Unflatten(parameters)

    def construct(self, loss: Tensor, vector: Tensor, weight: Tensor, *untrained_values: Tensor) -> tuple[Tensor, ...]:
        tally = None
        if self.finish.votes:
            tally = untrained_values[0]
            untrained_values = untrained_values[1:]
        return self.finish(loss, self.unflatten(vector), weight, untrained_values, tally)
