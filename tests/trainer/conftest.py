import mindspore as ms
import pytest


@pytest.fixture(autouse=True, scope="module")
def _graph_mode() -> None:
    """As the programs set it."""
    ms.set_context(mode=ms.GRAPH_MODE)
