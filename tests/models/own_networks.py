"""What somebody else's module of networks may hold; test_factory.py copies it into a working folder."""

from mindspore import nn


class Holder:
    @staticmethod
    def build(n_in: int = 3) -> nn.Cell:
        return nn.Dense(n_in, 2)


def number() -> int:
    return 3


def broken() -> nn.Cell:
    raise RuntimeError("out of ideas")


constant = 5
