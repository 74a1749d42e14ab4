"""``dimred eval``: the accuracy of a checkpoint."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dimred.errors import ConfigError


def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and test/<class>/ images.")],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="A checkpoint of stage 1 or 2, or an average.")],
    config: Annotated[Path, typer.Option(help="Stage 2's YAML file; data.eval_split names the split.")],
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the network with re-estimated statistics there.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the configuration.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print accuracies as fractions, as JSON.")] = False,
) -> None:
    """Accuracy as the statistics are, and with BatchNorm statistics re-estimated on training batches.

    Example: dimred eval ./digits average.ckpt --config pipelines/configs/digits_stage_2.yaml
    """
    if save is not None and save.exists():
        raise ConfigError(f"--save is {str(save)!r}, which exists already; name another file")
    from dimred.pipelines.evaluate import evaluate as accuracies

    found = accuracies(data, weights, config, overrides or [], save)
    if as_json:
        print(json.dumps(found))
        return
    print(
        f"accuracy {found['accuracy']:.4f}, with BatchNorm statistics re-estimated over {found['batches']} training "
        f"batches {found['accuracy_reestimated']:.4f}"
    )
