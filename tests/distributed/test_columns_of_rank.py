from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dimred.distributed.ranks import columns_of_rank
from dimred.errors import ConfigError


@given(st.integers(0, 10**12), st.integers(1, 70))
def test_every_column_has_one_owner_and_no_rank_two_more_than_another(n_columns, group_size):
    parts = [columns_of_rank(n_columns, rank, group_size) for rank in range(group_size)]
    assert parts[0].start == 0
    assert parts[-1].stop == n_columns
    assert all(before.stop == after.start for before, after in pairwise(parts))
    widths = [part.stop - part.start for part in parts]
    assert max(widths) - min(widths) <= 1
    assert max(widths) == -(-n_columns // group_size)


@pytest.mark.parametrize(("columns", "rank", "size"), [(5, 2, 2), (5, -1, 2), (5, 0, 0), (-1, 0, 1)])
def test_impossible_ranks_are_refused(columns, rank, size):
    with pytest.raises(ConfigError, match=f"rank {rank} of group_size {size}"):
        columns_of_rank(columns, rank, size)
