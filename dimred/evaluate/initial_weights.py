"""Where a search begins: the candidates, and the network put there."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from mindspore import nn

from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError, shown
from dimred.evaluate.averages import SnapshotAverages, shared
from dimred.evaluate.evaluator import OnSplits
from dimred.evaluate.window_search import ChosenWeights, search_windows
from dimred.subspace.basis import SubspaceBasis
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


def choose_start(
    network: nn.Cell,
    snapshots: CheckpointSeries,
    losses: Callable[[], np.ndarray],
    reestimate: Callable[[], object] = lambda: None,
) -> ChosenWeights:
    """Put the average of snapshots that a held-out loss chooses into a network, as stage 2's ``start: best`` does.

    The candidates are windows and profiles of the snapshots, and the network as it is (``last``). Of all that are no
    more than one standard error behind the lowest loss, the widest average is taken.

    Args:
        network: changed in place.
        snapshots: of its trainable weights.
        losses: measures the network as it is: one loss for each held-out sample, (n,).
        reestimate: called before each measurement; gives the network BatchNorm statistics that belong to its weights,
            such as ``lambda: dimred.reestimate_batch_norm(network, batches)``. A network without BatchNorm needs none.

    Returns:
        The weights, the candidate's name and loss, and all candidates.

    Raises:
        ConfigError: ``losses`` gives something else.
        CheckpointError: a snapshot can't be read, or is of another network.
        FaultError: no loss is finite.
    """
    layout = WeightLayout.from_network(network)

    def put(vector: np.ndarray) -> None:
        from_arrays(network.trainable_params(), layout.unflatten(vector), "the start of the search")
        reestimate()

    def measure() -> np.ndarray:
        found = losses()
        if np.ndim(found) != 1 or np.size(found) < 2:
            raise ConfigError(
                f"losses gave {shown(found)}; it must give one loss for each held-out sample, an array (n,)"
            )
        return np.asarray(found)

    return _put_best(network, SnapshotAverages(snapshots, layout), put, measure)


def _put_best(
    network: nn.Cell,
    averages: SnapshotAverages,
    put: Callable[[np.ndarray], None],
    losses: Callable[[], np.ndarray],
    others: Iterable[tuple[str, float, np.ndarray]] = (),
    *,
    reestimates: bool = True,
) -> ChosenWeights:
    """Put the last weights, an average of the snapshots or one of the others into a network, as the losses choose."""

    def measure(vector: np.ndarray) -> np.ndarray:
        put(vector)
        return losses()

    last = WeightLayout.from_network(network).flatten(to_arrays(network.trainable_params()))
    found = search_windows(averages, measure, [("last", 1.0, last), *others], reestimates=reestimates)
    put(found.weights)
    return found


class InitialWeights:
    """Where a search begins, by the name that the option ``start`` gives it.

    Args:
        network: set in place, on every rank.
        ranks: all of them call the methods; rank 0 has basis and snapshots, and tells the others.
        on: measures the network; ``best`` asks for the split ``val``.
    """

    def __init__(self, network: nn.Cell, ranks: Ranks, on: OnSplits) -> None:
        self._network = network
        self._ranks = ranks
        self._layout = WeightLayout.from_network(network)
        self._on = on

    def put(self, start: str, basis: SubspaceBasis | None, snapshots: CheckpointSeries | None) -> dict[str, Any]:
        """Put the network where the search begins; returns what ``result.json`` says of a choice, if one was made.

        Args:
            start: ``best``, ``mean``, ``last`` (the network as it is), or the path of a checkpoint.
            basis: on rank 0; None elsewhere, and without directions.
            snapshots: None where there are none, and on all ranks but 0.

        Raises:
            ConfigError: ``mean`` of a basis that has none.
            CheckpointError: a checkpoint that can't be read, or is of another network.
        """
        if start == "best":
            return self._best(basis, snapshots, "start", "started_from")
        if start == "mean":
            self._on.put(shared(self._ranks.run_on_rank_zero(lambda: _mean(basis)), self._layout, self._ranks))
            return {"start_width": self._n_in_mean(basis)}
        if start != "last":
            parameters = list(self._network.get_parameters())
            self._ranks.run_on_rank_zero(lambda: from_arrays(parameters, read_checkpoint(start), f"start {start!r}"))
            self._ranks.broadcast(parameters)
        return {}

    def put_average(self, snapshots: CheckpointSeries | None) -> dict[str, Any]:
        """Put the network where ``best`` would; returns the same by other names, and nothing without snapshots."""
        n_snapshots = self._ranks.sum([0 if snapshots is None else len(snapshots)])[0]
        return self._best(None, snapshots, "average", "average_of") if n_snapshots else {}

    def _best(
        self, basis: SubspaceBasis | None, snapshots: CheckpointSeries | None, what: str, chosen_as: str
    ) -> dict[str, Any]:
        """Of the averages of the snapshots and the last weights; where there are no snapshots, of the basis' mean."""
        others: list[tuple[str, float, np.ndarray]] = []
        averages = SnapshotAverages(snapshots, self._layout, self._ranks)
        mean, n_in_mean = None if basis is None else basis.mean, self._n_in_mean(basis)
        if n_in_mean and not averages.steps:
            others.append(("mean", n_in_mean, shared(mean, self._layout, self._ranks)))
        losses, reestimates = partial(self._on.losses, "val"), self._on.has_batch_norm
        found = _put_best(self._network, averages, self._on.put, losses, others, reestimates=reestimates)
        found.selection.tell(what)
        chosen = found.candidate
        return {chosen_as: chosen.name, f"{what}_width": chosen.width} | found.selection.summary(what)

    def _n_in_mean(self, basis: SubspaceBasis | None) -> float:
        """Of how many snapshots the mean is, on every rank; 0 where there is none."""
        own = 0 if basis is None or basis.mean is None else len(basis.snapshots)
        return float(self._ranks.sum([own])[0])


def _mean(basis: SubspaceBasis | None) -> np.ndarray:
    if basis is None or basis.mean is None:
        raise ConfigError("start is 'mean', but the basis file has no mean of the snapshots beside it; use start=last")
    return basis.mean
