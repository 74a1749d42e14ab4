"""At each call of a graph MindSpore visits every cell below the one that is called.

It tells each of them to which compiled graph it belongs, which takes a millisecond for the 214 cells of ResNet-50. Only
a compilation needs that. Seen in MindSpore 2.7.1 and 2.10. We know of no report. ``tests/workarounds`` fails once the
fault is gone.
"""

from mindspore import nn


class VisitedOnce:
    """A mixin for a cell that is called as a graph; it comes before ``nn.Cell`` in the list of bases.

    The cells below it are visited when a graph is compiled or another one is called, such as that of another shape.
    """

    @property
    def compile_phase(self) -> str | None:
        """Return the name of the compiled graph that was called last."""
        phase: str | None = nn.Cell.compile_phase.fget(self)
        return phase

    @compile_phase.setter
    def compile_phase(self, phase: str) -> None:
        if phase != self.compile_phase:
            nn.Cell.compile_phase.fset(self, phase)
