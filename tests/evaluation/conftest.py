from collections.abc import Iterator

import mindspore as ms
import pytest


@pytest.fixture(autouse=True)
def _pynative() -> Iterator[None]:
    """Compile nothing; a test of what graphs do sets the mode itself."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)
