"""The best average of the snapshots: measure windows and profiles on ``val``, and put the chosen weights."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from mindspore import nn

from dimred.averaging.choice import Candidate, Measured, Selection, choose
from dimred.averaging.windows import profiles_around, uniform_windows
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import ConfigError, shown
from dimred.evaluation.averages import SnapshotAverages
from dimred.train_step.network_state import evaluating
from dimred.vectors.parameters import from_arrays, to_arrays


class ChosenWeights(NamedTuple):
    """The weights that ``val`` chose.

    Attributes:
        weights: (M,) float32.
        candidate: as it was measured.
        selection: all candidates.
    """

    weights: np.ndarray
    candidate: Candidate
    selection: Selection

    def __repr__(self) -> str:
        """Describe the choice in one line."""
        return f"{self.candidate.name}: loss {self.candidate.loss:.4f}, of {len(self.selection.candidates)} candidates"


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
        from_arrays(network.trainable_params(), layout.unflatten(vector), "the average")
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
        return put_chosen(network, SnapshotAverages(snapshots, layout), put, measure, Selection())
    except BaseException:
        from_arrays(network.get_parameters(), before, "the network from before")
        raise


def put_chosen(
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
    found = choose_average(averages, measure, [("last", 1.0, last), *others], selection)
    put(found.weights)
    return found


def choose_average(
    averages: SnapshotAverages,
    measure: Callable[[np.ndarray], Measured],
    others: Iterable[tuple[str, float, np.ndarray]],
    selection: Selection,
) -> ChosenWeights:
    """Measure uniform windows, then linear and exponential profiles around the best of them, and choose by the rule.

    The longer a window, the more of the last epochs' noise is averaged away, and the further back it reaches (LAWA:
    Kaddour, 2022). Which is better depends on the task.

    Args:
        averages: of the snapshots.
        measure: weights (M,) -> loss and metric; called once for each candidate.
        others: (name, effective size, weights) of candidates beside the windows, such as the last weights.
        selection: gets the candidates.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit.
        FaultError: no loss is finite.
    """
    given = {name: (size, weights) for name, size, weights in others}
    for name, (size, weights) in given.items():
        selection.measure(name, size, partial(measure, weights))
    if windows := uniform_windows(len(averages.steps)):
        losses = [one.loss for one in averages.measure(windows, selection, measure)]
        averages.measure(profiles_around(windows[int(np.argmin(losses))]), selection, measure)
    chosen = choose(selection.candidates)
    found = averages.of_candidate(chosen.name)
    return ChosenWeights(given[chosen.name][1] if found is None else found, chosen, selection)
