from tests.helpers.modes import _graph_mode  # noqa: F401
