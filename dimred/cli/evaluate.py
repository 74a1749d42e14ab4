"""``dimred eval``: measure a checkpoint, with and without new BatchNorm statistics."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dimred.console import AsJson, Overrides, check_file, check_new_file
from dimred.io.metrics_file import metric_text
from dimred.io.run_names import named_weights


def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and test/<class>/ images.")],
    weights: Annotated[
        Path,
        typer.Argument(metavar="WEIGHTS", help="A checkpoint of stage 1 or 2, or an average.", callback=check_file),
    ],
    config: Annotated[Path, typer.Option(help="A stage's YAML file, or a recipe; data.eval_split names the split.")],
    save: Annotated[
        Path | None,
        typer.Option(help="Save the network with re-estimated statistics there.", callback=check_new_file),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Measure accuracy, or your own metric, with BatchNorm's statistics as they are and with re-estimated ones.

    They are re-estimated on training batches; stage 2's reestimate_batches says on how many. A merge of snapshots has
    no statistics, and gets them here. --json prints accuracies as fractions.

    Example: dimred eval ./digits average.ckpt --config digits
    """
    from dimred.config import StageTwoConfig, load_any_config

    settings = load_any_config(config, overrides or [])
    split = settings.data.eval_split
    n_batches = (settings if isinstance(settings, StageTwoConfig) else StageTwoConfig()).reestimate_batches
    from dimred.builders import build_data, build_network, build_scores, check_scores, check_splits
    from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
    from dimred.evaluation.evaluator import OnSplits
    from dimred.train_step.network_state import moving_statistics
    from dimred.trainer.device import set_up
    from dimred.vectors.parameters import from_arrays, to_arrays

    check_splits(settings, data, ["train", split])
    arrays = read_checkpoint(weights)
    set_up(settings.seed)
    network = build_network(settings)
    statistics = {value.name for value in moving_statistics(network)}
    absent = statistics if statistics.isdisjoint(arrays) else set()
    needed = [value for value in network.get_parameters() if value.name not in absent]
    from_arrays(needed, arrays, named_weights("WEIGHTS", weights))
    images = {name: build_data(settings.data, data, name) for name in {"train", split}}
    scores, name = build_scores(settings), settings.metric_name
    check_scores(settings, network, scores, images)
    on = OnSplits(network, images, scores, seed=settings.seed, n_batches=n_batches)
    found: dict[str, Any] = {"split": split}
    told = []
    if not absent:
        found |= {name: on.metric(split)}
        told.append(metric_text(name, found[name]))
    if on.has_batch_norm:
        found |= {"batches": on.reestimate(), f"{name}_reestimated": on.metric(split)}
        told.append(
            f"{metric_text(name, found[f'{name}_reestimated'])} with BatchNorm statistics re-estimated over "
            f"{found['batches']} training batches"
        )
    if save is not None:
        write_checkpoint(save, to_arrays(network.get_parameters()))
    if as_json:
        print(json.dumps(found))
        return
    print(f"{name} on {split!r}: {'; '.join(told)}")
