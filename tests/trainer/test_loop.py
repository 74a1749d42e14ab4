"""What the loop over epochs reports; what it does is in the tests of the stages."""

import pytest

from dimred.trainer import loop


def test_batches_that_are_read_again_are_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[None] = []
    monkeypatch.setattr(loop, "tell_alive", lambda: told.append(None))
    assert list(loop._batches_after(2, iter("abcd"))) == ["c", "d"]
    assert len(told) == 2
