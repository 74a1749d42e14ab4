"""Accuracy of a checkpoint, or of the plain average of a series of snapshots.

python -m pipelines.evaluate DATA WEIGHTS [--average CKPT_DIR] --config pipelines/configs/digits_stage_2.yaml
"""

import json
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from dimred.build import build_data, build_network
from dimred.config import StageTwoConfig, load_config
from dimred.data.image_folder import check_data
from dimred.evaluate.accuracy import Accuracy
from dimred.evaluate.averages import average_snapshots
from dimred.evaluate.batch_norm import reestimate_batch_norm
from dimred.runtime.console import run_program
from dimred.runtime.context import set_up
from dimred.runtime.parameters import from_arrays
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries
from dimred.weights.whole_file import write_whole


def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and test/<class>/ images.")],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="A full checkpoint.")],
    config: Annotated[Path, typer.Option(help="YAML file, see pipelines/configs.")],
    average: Annotated[
        Path | None, typer.Option(metavar="CKPT_DIR", help="Put the plain average of these snapshots (SWA) in place.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write both accuracies to this JSON file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the configuration.")] = None,
) -> None:
    """Accuracy as the statistics are, and with BatchNorm statistics re-estimated on training batches."""
    settings = load_config(StageTwoConfig, config, overrides or [])
    check_data(data, ["train", settings.data.eval_split], settings.model.n_classes)
    arrays = read_checkpoint(weights)
    set_up(settings.seed)
    network = build_network(settings)
    from_arrays(network.get_parameters(), arrays, f"WEIGHTS {str(weights)!r}")
    if average is not None:
        layout = WeightLayout.from_network(network)
        mean = layout.unflatten(average_snapshots(CheckpointSeries.open(average), layout))
        from_arrays(network.trainable_params(), mean, f"--average {str(average)!r}")
    images = build_data(settings.data, data, settings.data.eval_split)
    accuracy = Accuracy(network)
    result = {"accuracy": accuracy(images.evaluation())}
    batches = build_data(settings.data, data, "train").training_epoch(settings.seed, 0)
    n_batches = reestimate_batch_norm(
        network, islice(batches.create_tuple_iterator(num_epochs=1), settings.reestimate_batches)
    )
    result["accuracy_reestimated"] = accuracy(images.evaluation())
    print(
        f"accuracy {result['accuracy']:.4f}, with BatchNorm statistics re-estimated over {n_batches} training batches "
        f"{result['accuracy_reestimated']:.4f}"
    )
    if out is not None:
        write_whole(out, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    run_program(evaluate)
