"""``dimred eval``: the accuracy of a checkpoint."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dimred.console import AsJson, Overrides
from dimred.errors import ConfigError


def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and test/<class>/ images.")],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="A checkpoint of stage 1 or 2, or an average.")],
    config: Annotated[Path, typer.Option(help="Stage 2's YAML file; data.eval_split names the split.")],
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the network with re-estimated statistics there.")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy as the statistics are, and with BatchNorm statistics re-estimated on training batches.

    --json prints accuracies as fractions.

    Example: dimred eval ./digits average.ckpt --config pipelines/configs/digits_stage_2.yaml
    """
    if save is not None and save.exists():
        raise ConfigError(f"--save is {str(save)!r}, which exists already; name another file")
    from dimred.config import StageTwoConfig, load_config

    settings = load_config(StageTwoConfig, config, overrides or [])
    split = settings.data.eval_split
    from dimred.build import build_data, build_network, check_splits
    from dimred.evaluate.evaluator import OnSplits
    from dimred.run.device import set_up
    from dimred.vectors.parameters import from_arrays, to_arrays
    from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint

    check_splits(settings, data, ["train", split])
    arrays = read_checkpoint(weights)
    set_up(settings.seed)
    network = build_network(settings)
    from_arrays(network.get_parameters(), arrays, f"WEIGHTS {str(weights)!r}")
    images = {name: build_data(settings.data, data, name) for name in {"train", split}}
    on = OnSplits(network, images, seed=settings.seed, n_batches=settings.reestimate_batches)
    found = {"accuracy": on.accuracy(split), "batches": on.reestimate(), "accuracy_reestimated": on.accuracy(split)}
    if save is not None:
        write_checkpoint(save, to_arrays(network.get_parameters()))
    if as_json:
        print(json.dumps(found))
    else:
        batches = f"{found['batches']} training batches"
        print(
            f"accuracy {found['accuracy']:.4f}, with BatchNorm statistics re-estimated over {batches} "
            f"{found['accuracy_reestimated']:.4f}"
        )
