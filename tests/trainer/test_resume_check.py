"""What changed is shown, and accepted key by key."""

import pytest

from dimred.errors import ConfigError
from dimred.trainer.session import refuse_changes

BEFORE = {"epochs": 3, "data": {"batch_size": 20, "mean": [1.0, 2.0]}, "limit": None}


def test_every_difference_is_shown_with_the_way_to_accept_it() -> None:
    now = {"epochs": 4, "data": {"batch_size": 20, "mean": [1.0, 3.0]}, "limit": None}
    with pytest.raises(ConfigError) as refused:
        refuse_changes(BEFORE, now, [])
    for words in ("epochs: 3 -> 4", "data.mean: [1.0, 2.0] -> [1.0, 3.0]", "--allow-change epochs --allow-change d"):
        assert words in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        refuse_changes(BEFORE, now, ["epochs"])
    assert "epochs" not in str(refused.value)
    refuse_changes(BEFORE, now, ["epochs", "data.mean"])
    refuse_changes(BEFORE, now, ["epochs", "data"])  # a whole section


@pytest.mark.parametrize(
    ("one", "other", "key"),
    [
        ({"a": None}, {"a": {"b": 1}}, "a"),
        ({"a": {}}, {"a": {"b": 1}}, "a"),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": None}}, "a.c"),
        ({"a": 1}, {"a": 1, "d": {}}, "d"),
        ({"a": [1]}, {"a": [1, 2]}, "a"),
        ({"a": 1}, {"a": True}, "a"),
    ],
)
def test_a_difference_of_any_shape_is_refused_in_both_directions(one: dict, other: dict, key: str) -> None:
    for before, now in ((one, other), (other, one)):
        with pytest.raises(ConfigError, match=rf"(?m)^  {key}: .* -> .*$"):
            refuse_changes(before, now, [])
        refuse_changes(before, now, [key])


def test_a_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--allow-change has an unknown key 'epoch'; did you mean 'epochs'"):
        refuse_changes(BEFORE, BEFORE, ["epoch"])
