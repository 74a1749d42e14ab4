"""Configuration -> cells and data: the last place that sees a configuration."""

from dimred.build.network_and_data import (
    build_data,
    build_loss,
    build_network,
    check_ranks,
    check_splits,
)
from dimred.build.steps import build_search_step, build_train_step

__all__ = [
    "build_data",
    "build_loss",
    "build_network",
    "build_search_step",
    "build_train_step",
    "check_ranks",
    "check_splits",
]
