"""Where stage 2 begins: put the weights that ``val`` chooses into a network."""

from collections.abc import Callable, Iterable

import numpy as np
from mindspore import nn

from dimred.averaging.selection import Measured, Selection
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import ConfigError, shown
from dimred.evaluation.averages import SnapshotAverages
from dimred.evaluation.window_search import ChosenWeights, search_windows
from dimred.train_step.network_state import evaluating
from dimred.vectors.parameters import from_arrays, to_arrays


def choose_start(
    network: nn.Cell,
    snapshots: CheckpointSeries,
    losses: Callable[[], np.ndarray],
    reestimate: Callable[[], object] = lambda: None,
) -> ChosenWeights:
    """Put the average of snapshots that a held-out loss chooses into a network, as stage 2's ``start: best`` does.

    The candidates are windows and profiles of the snapshots, and the network as it is (``last``). Of all that are no
    more than one standard error behind the lowest loss, the largest average is taken.

    Args:
        network: changed in place.
        snapshots: of its trainable weights.
        losses: measures the network as it is, in evaluation mode: one loss for each held-out sample, (n,), of the same
            samples each time. Weights that are not finite are not measured and never chosen.
        reestimate: called before each measurement; gives the network BatchNorm statistics that belong to its weights,
            such as ``lambda: dimred.reestimate_batch_norm(network, batches)``. A network without BatchNorm needs none.

    Returns:
        The weights, the candidate's name and loss, and all candidates.

    Raises:
        ConfigError: ``losses`` gives something else. After any error the network is as it was.
        CheckpointError: a snapshot can't be read, or is of another network.
        FaultError: no loss is finite.
    """
    layout = WeightLayout.from_network(network)

    def put(vector: np.ndarray) -> None:
        from_arrays(network.trainable_params(), layout.unflatten(vector), "the start of the search")
        reestimate()

    sizes: set[int] = set()

    def measure() -> Measured:
        with evaluating(network):
            found = losses()
        if np.ndim(found) != 1 or np.size(found) < 2:
            raise ConfigError(
                f"losses gave {shown(found)}; it must give one loss for each held-out sample, an array (n,)"
            )
        sizes.add(len(found))
        if len(sizes) > 1:
            raise ConfigError(
                f"losses gave {min(sizes)} numbers for one candidate and {max(sizes)} for another; it must measure the "
                "same held-out samples in the same order each time"
            )
        return Measured(np.asarray(found))

    before = to_arrays(network.get_parameters())
    try:
        return put_best(network, SnapshotAverages(snapshots, layout), put, measure, Selection())
    except BaseException:
        from_arrays(network.get_parameters(), before, "the network from before")
        raise


def put_best(
    network: nn.Cell,
    averages: SnapshotAverages,
    put: Callable[[np.ndarray], None],
    on_val: Callable[[], Measured],
    selection: Selection,
    others: Iterable[tuple[str, float, np.ndarray]] = (),
) -> ChosenWeights:
    """Put the last weights, an average of the snapshots or one of the others into a network, as ``val`` chooses.

    Args:
        network: changed in place; has the last weights.
        averages: of the snapshots.
        put: sets weights (M,), with BatchNorm statistics that belong to them.
        on_val: measures the network.
        selection: gets the candidates.
        others: (name, effective size, weights) of more candidates.
    """

    def measure(vector: np.ndarray) -> Measured:
        if not np.isfinite(vector).all():
            return Measured(np.full(1, np.inf))  # never chosen; some layers hide a NaN, such as ReLU on a CPU
        put(vector)
        return on_val()

    last = WeightLayout.from_network(network).flatten(to_arrays(network.trainable_params()))
    found = search_windows(averages, measure, [("last", 1.0, last), *others], selection)
    put(found.weights)
    return found
