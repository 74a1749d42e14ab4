"""Fixtures that choose graph mode or PyNative; a package's conftest.py imports them."""

import mindspore as ms
import pytest
from mindspore.common.api import _pynative_executor


def _leave_pynative() -> None:
    # A network that raises inside a PyNative gradient leaves MindSpore's flag on, and the next graph of a gradient is
    # then compiled for second derivatives, which fails for cross entropy (its GatherDGradV2).
    _pynative_executor.set_grad_flag(False)
    ms.set_context(mode=ms.GRAPH_MODE)


@pytest.fixture
def pynative():
    """Run a test in PyNative; the mode is the whole process's."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    _leave_pynative()


@pytest.fixture(params=["graph", "pynative"])
def mode(request):
    """Run a test in graph mode and in PyNative."""
    ms.set_context(mode=ms.GRAPH_MODE if request.param == "graph" else ms.PYNATIVE_MODE)
    yield request.param
    _leave_pynative()


@pytest.fixture(autouse=True)
def _graph_mode():
    """Set graph mode, because MindSpore starts in PyNative."""
    ms.set_context(mode=ms.GRAPH_MODE)
