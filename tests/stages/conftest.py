import mindspore as ms
import pytest

from tests.helpers.finished_stage_1 import checkpoints  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def _graph_mode() -> None:
    """Set graph mode, as the programs do."""
    ms.set_context(mode=ms.GRAPH_MODE)
