"""The line that a search walks along."""

from mindspore import Tensor

from dimred.vectors.weight_vector import Weights


class Line:
    """The line w + t d through the weights as they stand.

    Attributes:
        start: w, (M,).
    """

    def __init__(self, weights: Weights, direction: Tensor):
        self._weights = weights
        self._direction = direction
        self._is_at_start = True
        self.start = weights.read()

    def move(self, step_size: float) -> None:
        """Move the weights to w + t d."""
        self._weights.put((1.0, self.start), (step_size, self._direction))
        self._is_at_start = False

    def back(self) -> None:
        """Put the weights back to w, bit for bit."""
        if not self._is_at_start:
            self._weights.write(self.start)
            self._is_at_start = True
