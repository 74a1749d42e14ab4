"""Fixtures that choose graph mode or PyNative; a package's conftest.py imports them."""

from collections.abc import Iterator

import mindspore as ms
import pytest


@pytest.fixture
def pynative():
    """Run a test in PyNative; the mode is the whole process's."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


def compile_nothing() -> Iterator[None]:
    """Run stages and their programs in PyNative, which is quicker for a few steps; elsewhere they run in graphs."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ms, "GRAPH_MODE", ms.PYNATIVE_MODE)
        yield
    ms.set_context(mode=ms.context.GRAPH_MODE)


@pytest.fixture(params=["graph", "pynative"])
def mode(request):
    """Run a test in graph mode and in PyNative."""
    ms.set_context(mode=ms.GRAPH_MODE if request.param == "graph" else ms.PYNATIVE_MODE)
    yield request.param
    ms.set_context(mode=ms.GRAPH_MODE)


slow_in_graph = pytest.mark.parametrize(
    "mode", [pytest.param("graph", marks=pytest.mark.slow), "pynative"], indirect=True
)
"""Run a test that has ``mode`` in PyNative, and only with ``-m slow`` in graph mode, which takes seconds to compile.

It is for what the host does, whichever mode it is in; other tests show by default what graphs do.
"""


@pytest.fixture(autouse=True)
def _graph_mode():
    """Set graph mode, because MindSpore starts in PyNative."""
    ms.set_context(mode=ms.GRAPH_MODE)
