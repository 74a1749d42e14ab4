"""The networks known by name."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from mindspore import nn

from dimred.errors import ConfigError
from dimred.models.factory import make_network
from dimred.models.lenet import lenet
from dimred.models.resnet import resnet


class BuiltIn(NamedTuple):
    """A built-in network for images."""

    make: Callable[[int, str], nn.Cell]  # takes the number of outputs and the name of the initialisation
    channels: int  # in an image
    size: int  # height and width of the images that it is made for, in pixels
    takes_any_size: bool

    def misfit(self, shape: tuple[int, ...]) -> str | None:
        """Return what the network takes if it can't take this image shape (channels, height, width), else None."""
        size = shape[-1] if self.takes_any_size else self.size
        if shape == (self.channels, size, size):
            return None
        of_size = "" if self.takes_any_size else f" and {self.size} x {self.size} pixels"
        return f"images of {self.channels} channel{'s' if self.channels > 1 else ''}{of_size}"


BUILT_IN = {
    "resnet50": BuiltIn(partial(resnet, "resnet50"), channels=3, size=224, takes_any_size=True),
    "resnet18": BuiltIn(partial(resnet, "resnet18"), channels=3, size=224, takes_any_size=True),
    "resnet_small": BuiltIn(partial(resnet, "resnet_small"), channels=3, size=16, takes_any_size=True),
    "lenet": BuiltIn(lenet, channels=1, size=32, takes_any_size=False),
}


def make_named(name: str, n_classes: int, initialisation: str = "xavier_uniform") -> nn.Cell:
    """Make a network by name, with fresh initial weights that ``mindspore.set_seed`` determines.

    Args:
        name: a built-in network, or a factory, ``package.module:factory``.
        n_classes: number of outputs, at least 2 for a built-in network.
        initialisation: how a built-in network's convolutions are initialised; see ``initialise``.

    Raises:
        ConfigError: ``n_classes`` is too small, or the factory can't be used; see ``make_network``.
    """
    if name not in BUILT_IN:
        return make_network(name, n_classes)
    if n_classes < 2:
        raise ConfigError(f"n_classes is {n_classes}; a classifier needs at least 2", argument="n_classes")
    return BUILT_IN[name].make(n_classes, initialisation)


def usual_input(name: str) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a network is made for; ImageNet's if unknown."""
    known = BUILT_IN.get(name, BUILT_IN["resnet50"])
    return (known.channels, known.size, known.size)
