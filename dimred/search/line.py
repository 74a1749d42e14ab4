"""The line that a search walks along."""

from mindspore import Tensor

from dimred.train_step.network_state import Weights, along


class Line:
    """The line w + t d through the weights as they stand, and where on it they are.

    Attributes:
        start: w, (M,).
        point: the weights as they stand now, (M,).
    """

    def __init__(self, weights: Weights, start: Tensor, direction: Tensor):
        self._weights = weights
        self._direction = direction
        self.start = start
        self.point = start

    def move(self, step_size: float) -> None:
        """Move the weights to w + t d."""
        self._go(along(self.start, self._direction, step_size))

    def back(self) -> None:
        """Put the weights back to w, bit for bit."""
        self._go(self.start)

    def leave(self, point: Tensor) -> None:
        """Move the weights to a point beside the line."""
        self._go(point)

    def _go(self, point: Tensor) -> None:
        if point is not self.point:
            self._weights.write(point)
            self.point = point
