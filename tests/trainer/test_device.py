"""The choice of the device, as far as a host without Ascend can show it."""

import mindspore as ms
import pytest

from dimred.errors import ConfigError
from dimred.trainer.device import set_up


def test_a_device_that_mindspore_cannot_use_is_refused_as_configuration():
    with pytest.raises(ConfigError, match=r"--device-target is Ascend, .*Unsupported device target.* set_env\.sh"):
        set_up(1, "Ascend")
    assert ms.get_context("device_target") == "CPU"


class _ChosenError(Exception):
    pass


@pytest.mark.parametrize(("given", "told"), [("5", ("Ascend", 5)), (None, ("Ascend",))])
def test_the_device_is_the_one_that_the_environment_names(monkeypatch, given, told):
    def set_device(*chosen):
        raise _ChosenError(*chosen)

    monkeypatch.setattr(ms, "set_device", set_device)  # there is no device 5 here
    monkeypatch.delenv("DEVICE_ID", raising=False)
    if given is not None:
        monkeypatch.setenv("DEVICE_ID", given)
    with pytest.raises(_ChosenError) as chosen:
        set_up(1, "Ascend")
    assert chosen.value.args == told
