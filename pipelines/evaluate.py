"""Accuracy of a checkpoint: ``dimred eval``."""

from collections.abc import Sequence
from pathlib import Path

from dimred.build import build_data, build_network, check_splits
from dimred.config import StageTwoConfig, load_config
from dimred.evaluate.evaluator import OnSplits
from dimred.run.device import set_up
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint


def evaluate(
    data: Path, weights: Path, config: Path, overrides: Sequence[str], save: Path | None = None
) -> dict[str, float]:
    """Accuracy as the statistics are, and with BatchNorm statistics re-estimated on training batches.

    Args:
        data: folder of the splits.
        weights: a checkpoint with statistics.
        config: stage 2's YAML file.
        overrides: ``key=value`` each.
        save: the network with re-estimated statistics goes there.

    Returns:
        ``accuracy``, ``accuracy_reestimated``, and ``batches``, how many the statistics were re-estimated on.
    """
    settings = load_config(StageTwoConfig, config, overrides)
    check_splits(settings, data, ["train", settings.data.eval_split])
    arrays = read_checkpoint(weights)
    set_up(settings.seed)
    network = build_network(settings)
    from_arrays(network.get_parameters(), arrays, f"WEIGHTS {str(weights)!r}")
    split = settings.data.eval_split
    images = {name: build_data(settings.data, data, name) for name in {"train", split}}
    on = OnSplits(network, images, seed=settings.seed, n_batches=settings.reestimate_batches)
    found = {"accuracy": on.accuracy(split), "batches": on.reestimate(), "accuracy_reestimated": on.accuracy(split)}
    if save is not None:
        write_checkpoint(save, to_arrays(network.get_parameters()))
    return found
