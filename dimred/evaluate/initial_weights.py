"""Where a search begins: the candidates, and the network put there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from dimred.console import say
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError
from dimred.evaluate.averages import average_snapshots, best_of
from dimred.subspace.basis import SubspaceBasis
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


class InitialWeights:
    """Where a search begins, by the name that the option ``start`` gives it.

    Args:
        network: set in place, on every rank.
        ranks: all of them call the methods; rank 0 has basis and snapshots, and tells the others.
        reestimate: gives the network BatchNorm statistics that belong to its weights.
        loss: the network's on the held-out split; asked for by ``best`` only.
    """

    def __init__(
        self, network: nn.Cell, ranks: Ranks, reestimate: Callable[[], object], loss: Callable[[], float]
    ) -> None:
        self._network = network
        self._ranks = ranks
        self._layout = WeightLayout.from_network(network)
        self._reestimate = reestimate
        self._loss = loss

    def put(self, start: str, basis: SubspaceBasis | None, snapshots: Path) -> dict[str, Any]:
        """``best``, ``mean``, ``last`` (the network as it is), or the path of a checkpoint; what is told of a choice.

        Raises:
            ConfigError: ``mean`` of a basis that has none.
            CheckpointError: a checkpoint that can't be read, or is of another network.
        """
        if start == "best":
            return self._best(basis, snapshots)
        if start == "mean":
            self._place(self._of_first(self._ranks.run_on_rank_zero(lambda: _mean(basis))))
        elif start != "last":
            parameters = list(self._network.get_parameters())
            self._ranks.run_on_rank_zero(lambda: from_arrays(parameters, read_checkpoint(start), f"start {start!r}"))
            self._ranks.broadcast(parameters)
        return {}

    def _best(self, basis: SubspaceBasis | None, snapshots: Path) -> dict[str, Any]:
        """Of the means and the last weights, the lowest loss on ``val``; BatchNorm statistics re-estimated for each."""
        last = self._layout.flatten(to_arrays(self._network.trainable_params()))
        series = CheckpointSeries.open(snapshots) if self._ranks.is_rank_zero and snapshots.is_dir() else None
        points = starting_points(last, basis.mean if basis else None, series, self._layout)

        def loss(vector: np.ndarray) -> float:
            self._place(vector)
            return self._loss()

        choice = best_of(self._shared(points), loss)
        self._place(choice.weights)
        listed = ", ".join(f"{name} {loss:.4f}" for name, loss in choice.losses.items())
        say(f"start: {choice.name}, the lowest loss on 'val' (of equal ones the first): {listed}")
        return {"started_from": choice.name, "start_val_loss": choice.losses}

    def _shared(self, points: Iterator[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
        """Rank 0's points, on every rank."""
        while True:
            point = self._ranks.run_on_rank_zero(lambda: next(points, None))
            name = self._ranks.broadcast_bytes(point[0].encode() if point else b"").decode()
            if not name:
                return
            yield name, self._of_first(point[1] if point else None)

    def _of_first(self, vector: np.ndarray | None) -> np.ndarray:
        """Rank 0's vector (M,), on every rank."""
        return self._ranks.sum(np.zeros(self._layout.size, np.float32) if vector is None else vector)

    def _place(self, vector: np.ndarray) -> None:
        """Weights (M,) into the network, with BatchNorm statistics that belong to them."""
        from_arrays(self._network.trainable_params(), self._layout.unflatten(vector), "the start of the search")
        self._reestimate()


def _mean(basis: SubspaceBasis | None) -> np.ndarray:
    if basis is None or basis.mean is None:
        raise ConfigError("start is 'mean', but the basis file has no mean of the snapshots beside it; use start=last")
    return basis.mean


_FRACTIONS = (2, 4, 8)


def starting_points(
    last: np.ndarray, mean: np.ndarray | None, series: CheckpointSeries | None, layout: WeightLayout
) -> Iterator[tuple[str, np.ndarray]]:
    """The mean of all snapshots, of the latest half, quarter and eighth of them, and the last weights.

    The longer the window, the more of the last epochs' noise is averaged away, and the further back it reaches (LAWA:
    Kaddour, 2022); which is better depends on how far training still moved. Each is computed when it is asked for.

    Args:
        last: the weights that training ended with, (M,) float32.
        mean: of all snapshots, (M,) float32; None leaves it out.
        series: the snapshots; None leaves out the means of the latest.
        layout: of the weights.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout.
    """
    if mean is not None:
        yield "mean", mean
    for fraction in _FRACTIONS:
        n_latest = 0 if series is None else len(series) // fraction
        if series is not None and n_latest > 1:
            yield f"mean of the latest {n_latest}", average_snapshots(series.select(last=n_latest), layout)
    yield "last", last
