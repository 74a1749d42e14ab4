"""A series of snapshots that several test files share."""

import pytest

from dimred.files.digest import CHUNK
from dimred.weights.series import CheckpointSeries
from tests.helpers.planted import random_walk, write_series

M = 2 * CHUNK + 4321  # several blocks, several strips, none of them full


@pytest.fixture(scope="session")
def walk(tmp_path_factory):
    directory = tmp_path_factory.mktemp("walk")
    snapshots = random_walk(12, M)
    write_series(directory, snapshots)
    return CheckpointSeries.open(directory), snapshots
