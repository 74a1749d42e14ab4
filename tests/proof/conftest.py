from tests.helpers.modes import _graph_mode, pynative  # noqa: F401
