"""Whenever a cell is called as a graph, MindSpore visits every cell below it.

It tells each cell which compiled graph it belongs to. For ResNet-50's 214 cells this takes a millisecond, and only a
compilation needs it. Seen in MindSpore 2.7.1 and 2.10. We know of no report. ``tests/workarounds`` fails once the fault
is gone.
"""

from mindspore import nn


class VisitedOnce:
    """A mixin for a cell that is called as a graph; list it before ``nn.Cell`` among the bases.

    The cells below it are visited only when a graph is compiled, or when another graph is called, as for another shape.
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
