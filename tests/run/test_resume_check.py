"""What changed is shown, and accepted key by key."""

import pytest

from dimred.errors import ConfigError
from dimred.run.resume_check import refuse_changes

BEFORE = {"epochs": 3, "data": {"batch_size": 20, "mean": [1.0, 2.0]}, "gone": 1}


def test_the_same_and_new_keys_pass() -> None:
    refuse_changes(BEFORE, {"epochs": 3, "data": {"batch_size": 20, "mean": [1.0, 2.0]}, "new": 5}, [])


def test_every_difference_is_shown_with_the_way_to_accept_it() -> None:
    now = {"epochs": 4, "data": {"batch_size": 20, "mean": [1.0, 3.0]}}
    with pytest.raises(ConfigError) as refused:
        refuse_changes(BEFORE, now, [])
    for words in ("epochs: 3 -> 4", "data.mean: [1.0, 2.0] -> [1.0, 3.0]", "--allow-change epochs --allow-change d"):
        assert words in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        refuse_changes(BEFORE, now, ["epochs"])
    assert "epochs" not in str(refused.value)
    refuse_changes(BEFORE, now, ["epochs", "data.mean"])


def test_a_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--allow-change is 'epoch', which is no key; did you mean 'epochs'"):
        refuse_changes(BEFORE, BEFORE, ["epoch"])
