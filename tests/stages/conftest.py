import pytest

from tests.helpers.finished_stage_1 import checkpoints  # noqa: F401
from tests.helpers.modes import compile_nothing

_of_module = pytest.fixture(autouse=True, scope="module")(compile_nothing)
_of_test = pytest.fixture(autouse=True)(compile_nothing)
