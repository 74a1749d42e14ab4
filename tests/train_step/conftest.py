from tests.search.conftest import _graph_mode, mode, pynative  # noqa: F401
