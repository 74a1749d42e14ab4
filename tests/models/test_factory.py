"""Networks named package.module:factory are found, and errors say why one is not."""

import sys
from pathlib import Path

import pytest
from mindspore import nn

from dimred.errors import ConfigError
from dimred.models.factory import make_cell, make_network

OWN = """
from mindspore import nn
class Holder:
    @staticmethod
    def build(n_in=3):
        return nn.Dense(n_in, 2)
def as_mindcv(pretrained=False, num_classes=1000, in_channels=3):
    assert pretrained is False
    return nn.Dense(in_channels, num_classes)
def keyword_only(*, width=2, num_labels):
    return nn.Dense(width, num_labels)
class Network(nn.Dense):
    def __init__(self, width=2, class_num=4):
        super().__init__(width, class_num)
def fixed():
    return nn.Dense(2, 9)
def any_options(*sizes, **options):
    assert not sizes and not options
    return nn.Dense(2, 8)
def other_name(n, width, depth=3):
    return nn.Dense(width, n)
partly = __import__("functools").partial(as_mindcv, in_channels=5)
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


def test_modules_of_the_working_folder_are_found_behind_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's file hides neither a module of Python's nor an installed package."""
    for name in ("network_of_mine", "wave"):
        (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    assert make_cell("network_of_mine:Holder.build").in_channels == 3
    with pytest.raises(ConfigError, match=r"'wave' has no 'Holder\.build'; the module is .*/wave\.py$"):
        make_cell("wave:Holder.build")


def test_a_network_of_the_working_folder_is_built(folder: None) -> None:
    network = make_cell("own_networks:Holder.build", 5)
    assert isinstance(network, nn.Dense)
    assert network.in_channels == 5


@pytest.mark.parametrize(
    ("factory", "shape"),
    [
        ("as_mindcv", (10, 3)),
        ("keyword_only", (10, 2)),
        ("Network", (10, 2)),
        ("partly", (10, 5)),
        ("fixed", (9, 2)),
        ("any_options", (8, 2)),
    ],
)
def test_the_number_of_classes_goes_to_the_parameter_that_is_called_so(
    folder: None, factory: str, shape: tuple[int, int]
) -> None:
    assert make_network(f"own_networks:{factory}", 10).weight.shape == shape


def test_mindcv_s_factories_are_taken_as_they_are() -> None:
    """Their first parameter is ``pretrained``."""
    network = make_network("mindcv.models:resnet18", 10)
    assert [parameter.shape for parameter in network.trainable_params()][-2:] == [(10, 512), (10,)]


def test_a_factory_that_needs_something_else_is_explained(folder: None) -> None:
    with pytest.raises(ConfigError, match=r"other_name', which needs a value for n, width; give the number of classes"):
        make_network("own_networks:other_name", 10)


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
