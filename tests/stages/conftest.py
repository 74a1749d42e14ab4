from collections.abc import Iterator

import mindspore as ms
import pytest

from tests.helpers.finished_stage_1 import checkpoints  # noqa: F401


def _compile_nothing() -> Iterator[None]:
    """Run the stages in PyNative, which is quicker for a few steps; the programs set graph mode, here and elsewhere."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


_of_module = pytest.fixture(autouse=True, scope="module")(_compile_nothing)
_of_test = pytest.fixture(autouse=True)(_compile_nothing)
