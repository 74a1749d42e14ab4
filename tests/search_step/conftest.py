from tests.helpers.modes import _graph_mode, mode, pynative  # noqa: F401
