"""Programs of these tests run as ranks, which find modules only where they are installed or PYTHONPATH says."""

from collections.abc import Iterator

import pytest

from tests.helpers.commands import REPOSITORY


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        yield
