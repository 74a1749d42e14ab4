"""Write a series of snapshots that several test files share."""

import pytest

from dimred.checkpoints.series import CheckpointSeries
from tests.helpers.planted import WALK_WIDTH, random_walk, write_series


@pytest.fixture(scope="session")
def walk(tmp_path_factory):
    directory = tmp_path_factory.mktemp("walk")
    snapshots = random_walk(12, WALK_WIDTH)
    write_series(directory, snapshots)
    return CheckpointSeries.open(directory), snapshots
