"""Networks named package.module:factory are found, and errors say why one is not."""

from pathlib import Path

import pytest
from mindspore import nn

from dimred.errors import ConfigError
from dimred.models.factory import make_cell

OWN = """
from mindspore import nn
class Holder:
    @staticmethod
    def build(n_in=3):
        return nn.Dense(n_in, 2)
def number():
    return 3
def broken():
    raise RuntimeError("out of ideas")
constant = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("import a_package_that_is_not_there")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_network_of_the_working_folder_is_built(folder: None) -> None:
    network = make_cell("own_networks:Holder.build", 5)
    assert isinstance(network, nn.Dense)
    assert network.in_channels == 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere_at_all:build", "'nowhere_at_all' can't be imported"),
        ("own_broken:build", "a_package_that_is_not_there"),
        ("own_networks.py:broken", "name the module without its ending: own_networks:broken"),
        ("own_networks:Holder.made", "'own_networks' has no 'Holder.made'"),
        ("own_networks:constant", "which is not a function: it is 5"),
        ("own_networks:number", "returned int; it must return an nn.Cell"),
        ("own_networks:broken", "failed with RuntimeError: out of ideas"),
    ],
)
def test_an_unusable_factory_is_explained(folder: None, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_cell(name)
    assert said in str(refused.value)
