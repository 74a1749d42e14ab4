"""``dimred eval``, ``average``, ``rebuild`` and ``summary``: what is done with one network."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dimred.console import AsJson, Overrides, check_file, check_new_file
from dimred.errors import ConfigError
from dimred.files.metrics_file import metric_text
from dimred.files.run_names import SNAPSHOTS, named_weights

if TYPE_CHECKING:
    from dimred.models.summary import Summary


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
    """Accuracy, or your own metric, as the statistics are, and with BatchNorm's re-estimated on training batches.

    Stage 2's reestimate_batches says how many batches. A merge of snapshots has no statistics, and gets them here.
    --json prints accuracies as fractions.

    Example: dimred eval ./digits average.ckpt --config digits
    """
    from dimred.config import StageTwoConfig, load_any_config

    settings = load_any_config(config, overrides or [])
    split = settings.data.eval_split
    n_batches = (settings if isinstance(settings, StageTwoConfig) else StageTwoConfig()).reestimate_batches
    from dimred.build import build_data, build_network, build_scores, check_scores, check_splits
    from dimred.evaluate.evaluator import OnSplits
    from dimred.run.device import set_up
    from dimred.train_step.network_state import moving_statistics
    from dimred.vectors.parameters import from_arrays, to_arrays
    from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint

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


def average(
    ckpt_dir: Annotated[
        Path, typer.Argument(metavar="CHECKPOINTS", help="The folder of the snapshots (checkpoint_pca).")
    ],
    weights: Annotated[
        Path,
        typer.Argument(metavar="WEIGHTS", help="A full checkpoint, for all that isn't averaged.", callback=check_file),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="The checkpoint to write; an existing file is kept.", callback=check_new_file
        ),
    ],
    last: Annotated[int | None, typer.Option(help="The mean of the latest N only (LAWA); default all (SWA).")] = None,
    decay: Annotated[
        float | None, typer.Option(help="Their exponential moving average (EMA) with this decay, not the mean.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Average snapshots: SWA, LAWA, or EMA. dimred merge has other profiles, and a search.

    BatchNorm statistics are those of WEIGHTS; dimred eval shows the accuracy with new ones, and --save keeps them.

    Example: dimred average device0_stage_1/checkpoint_stage_1/checkpoint_pca resnet-70_625.ckpt average.ckpt
    """
    from dimred.merging.average import average as write_average

    if weights.parent.name == SNAPSHOTS:
        raise ConfigError(f"{named_weights('WEIGHTS', weights)} has nothing of what isn't averaged")
    if decay is not None and not 0 <= decay < 1:
        raise ConfigError(f"--decay is {decay}; it must be at least 0 and below 1 (0.9 is usual)")
    profile = "uniform" if decay is None else f"exponential={decay}"
    record = write_average(ckpt_dir, out, profile=profile, last=last, rest=weights)
    if as_json:
        print(json.dumps(record))
        return
    kind = "mean" if decay is None else f"moving average, decay {decay},"
    print(f"{out}: {kind} of {len(record['checkpoints'])} snapshots\nBatchNorm: {record['batch_norm']}.")


def rebuild(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="subspace_path.json, written by stage 2 with residual=off.", callback=check_file
        ),
    ],
    start: Annotated[Path, typer.Option(help="The checkpoint that the search started from.", callback=check_file)],
    basis: Annotated[Path, typer.Option(help="The pca_mat.npy that it searched in.", callback=check_file)],
    out: Annotated[Path, typer.Option(help="The checkpoint to write; must not exist yet.", callback=check_new_file)],
    step: Annotated[int | None, typer.Option(help="0 is the start; default the last step.")] = None,
) -> None:
    """Rebuild the network of any step of a search from its start and k numbers.

    BatchNorm statistics are those of the start: re-estimate them before use.

    Example: dimred rebuild subspace_path.json --start resnet-start.ckpt --basis pca_mat.npy --step 17 --out at17.ckpt
    """
    from dimred.subspace.basis import load_basis
    from dimred.subspace.path import read_path
    from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint

    searched = read_path(path)
    rows = load_basis(basis)
    arrays = read_checkpoint(start)
    layout = rows.layout
    if layout is None:
        raise ConfigError(f"--basis {str(basis)!r} does not say which weights it is of: its pca_mat.h5 is missing")
    chosen = searched.n_steps if step is None else step
    weights = searched.weights_at(chosen, layout.flatten(arrays), rows)
    write_checkpoint(out, arrays | layout.unflatten(weights))
    print(f"{out}: the network after step {chosen} of {searched.n_steps}")


def summary(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="resnet50, resnet18, resnet_small, or your own: package.module:factory."),
    ],
    input_size: Annotated[
        int | None, typer.Option(min=1, help="Height and width of an image; 224, for resnet_small 16.")
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option(help="The whole shape of the input, batch included, such as 1,3,224,224.")
    ] = None,
    classes: Annotated[
        int, typer.Option(min=2, help="Outputs; of your own network the argument of its factory.")
    ] = 1001,
    as_json: AsJson = False,
) -> None:
    """Layers, shapes, parameters and FLOPs of a network, for one forward pass.

    Example: dimred summary resnet50

    Example: dimred summary my_networks:build --input-shape 1,1,28,28 --json
    """
    if input_shape is not None and input_size is not None:
        raise ConfigError("give --input-size or --input-shape, not both")
    size = input_size or (16 if model == "resnet_small" else 224)
    shape = (1, 3, size, size) if input_shape is None else _parse_shape(input_shape)
    from dimred.models.factory import make_cell
    from dimred.models.resnet import resnet
    from dimred.models.summary import summarise

    found = summarise(make_cell(model, classes) if ":" in model else resnet(model, classes), shape)
    if as_json:
        print(json.dumps(found._asdict() | {"layers": [layer._asdict() for layer in found.layers]}))
    else:
        _print_summary(found)


def _parse_shape(text: str) -> tuple[int, ...]:
    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--input-shape is {text!r}; expected whole numbers above 0, such as 1,3,224,224")
    return tuple(map(int, parts))


def _print_summary(found: "Summary") -> None:
    rows = [("layer", "kind", "input", "output", "parameters", "FLOPs")]
    for name, kind, taken, given, n_parameters, _, flops in found.layers:
        rows.append((name, kind, _by(taken), _by(given), f"{n_parameters:,}", f"{flops:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{'<' if column < 4 else '>'}{width}}}" for column, width in enumerate(widths))
    for row in rows:
        print(line.format(*row))
    mebibytes = 4 * found.n_parameters / 2**20
    print(
        f"\n{found.n_parameters:,} parameters that train ({mebibytes:.1f} MiB in float32), {found.n_other:,} others\n"
        f"{found.flops / 1e9:.3f} GFLOPs for an input of {_by(found.input_shape)} ({found.flops / 2e9:.3f} G "
        "multiply-adds)"
    )


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
