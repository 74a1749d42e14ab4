"""``dimred eval``, ``compare``, ``report``, ``summary``: measure weights or methods, report a run, list layers."""

import json
import logging
import re
from pathlib import Path
from typing import Annotated

import typer

from dimred.console import AsJson, DeviceTargetIfGiven, Overrides, check_new_file, print_table
from dimred.errors import ConfigError, StoppedError
from dimred.launch.devices import choose_device, make_ready
from dimred.run_files.metric import REESTIMATED
from dimred.run_files.metrics_file import json_text
from dimred.run_files.run_names import (
    CONFIG,
    STAGE_1_CHECKPOINTS,
    STAGE_2_CHECKPOINTS,
    full_checkpoints,
    own_config,
    without_dots,
)

_log = logging.getLogger(__name__)


def evaluate(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and the images of data.eval_split.")
    ],
    weights: Annotated[
        Path,
        typer.Argument(
            metavar="WEIGHTS",
            help="A checkpoint of stage 1 or 2, an average, or a run's folder for the network it ended with.",
            exists=True,
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file, or a recipe, whose data.eval_split names the split; by default the file of the run that "
            "WEIGHTS come from. Only the keys that both stages share are read."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Save the network with re-estimated statistics to this new file.", callback=check_new_file),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="Write a line for each sample to this new CSV file: path or number, label, prediction, probability.",
            callback=check_new_file,
        ),
    ] = None,
    device_target: DeviceTargetIfGiven = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Measure the accuracy, or your own metric, of a checkpoint or of a run's network.

    A network with BatchNorm is measured twice: with its own statistics, and with statistics re-estimated on
    reestimate_batches training batches. Weights without statistics, such as a merge of snapshots, are measured with
    the re-estimated ones alone. With 100 classes or more, top5 is measured too. --json prints the accuracy as a
    fraction, for each class too, and which classes were taken for which. These figures and --predictions use the
    network's own statistics, if it has any. A warning is shown if the split also chose something in the run that
    WEIGHTS come from.

    Example: dimred eval ./digits average.ckpt --config digits

    Example: dimred eval ./digits device0_stage_2 --predictions predictions.csv
    """
    from dimred.config import StageConfig, load_config

    run = run_of(weights)
    if weights.is_dir():
        weights = network_of_run(weights)
        _log.info(f"measuring {weights}")
    if run is not None:
        config = config or own_config(run)
    if config is None:
        raise ConfigError(
            f"--config is missing, and WEIGHTS {str(weights)!r} are not in a run whose {CONFIG} could be used; give "
            "the YAML file, or the recipe, that they were trained with"
        )
    # A replaced image would get the prediction for another one.
    of_images = ["data.damaged=stop"] if predictions is not None else []
    stage_config = load_config(StageConfig, config, [*(overrides or []), *of_images])
    device_target = choose_device(device_target)
    make_ready(device_target)  # before MindSpore is imported
    from dimred.checkpoints.checkpoint_io import check_ending
    from dimred.runs.evaluate import choice_warning
    from dimred.runs.evaluate import evaluate as measure

    if save is not None:
        check_ending(save, "--save")
    found = measure(stage_config, data, weights, device_target, save=save, predictions=predictions)
    warning = choice_warning(run, found.split) if run else None
    if as_json:
        print(json_text(found.record() | ({} if warning is None else {"warning": warning})))
        return
    again = f" with BatchNorm statistics re-estimated over {found.n_batches} training batches"
    for metric in found.metrics:
        figures = found.figures[metric.name]
        texts = [metric.text(value) + again * (kind == REESTIMATED) for kind, value in figures.items()]
        no_error = " (over the whole split, so without a standard error)" * found.is_of_whole_split
        print(f"{metric.name} on {found.split!r}: {'; '.join(texts)}{no_error}")
    if predictions is not None:
        print(f"predictions: {predictions}")
    if warning is not None:
        print(warning)


def run_of(path: Path) -> Path | None:
    """Return the folder of the run that a file or folder belongs to; None if it belongs to no run."""
    path = without_dots(path)
    for folder in (path, *path.parents[:3]):
        is_run = any((folder / name).is_dir() for name in (STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS))
        if is_run and (folder / CONFIG).is_file():
            return folder
    return None


def network_of_run(folder: Path) -> Path:
    """Return the path of the network that a run ended with: stage 2's, or stage 1's last full checkpoint.

    Args:
        folder: the folder that the user gave as WEIGHTS.

    Raises:
        ConfigError: the folder is not a run's, or holds no network yet.
    """
    run = without_dots(folder)
    if run_of(run) != run:
        raise ConfigError(
            f"WEIGHTS is {str(folder)!r}, which is not the folder of a run; give a checkpoint or a finished run"
        )
    stage_1 = run / STAGE_1_CHECKPOINTS
    final = [*(run / STAGE_2_CHECKPOINTS).glob("*-final.ckpt"), *stage_1.glob("*-final.ckpt")]
    if final:
        return final[0]
    full = full_checkpoints(stage_1)
    if not full:
        raise ConfigError(
            f"WEIGHTS is {str(folder)!r}, which is a run that has not saved the network it ends with; give a "
            "checkpoint or a finished run"
        )
    return full[max(full)]


def compare(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Folder with train/, val/ and test/; {seed} stands for a run's seed.")
    ],
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished stage 1 runs, one for each seed.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file, or a recipe such as digits, with stage 2; by default the first RUN's."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("comparison"),
    methods: Annotated[
        str | None,
        typer.Option(
            help="Run only these, separated by commas; by default all that apply: last, average, stage_2, cooldown, "
            "plain_for_total, schedule_free, plain_to_the_end."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Epochs after which to treat stage 1 as ended, such as 20,30; by default its last."),
    ] = None,
    device_target: DeviceTargetIfGiven = None,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the rows that an earlier call left in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare stage 2 with averages of the same snapshots and with plain training.

    Rivals that need training are trained here. Choices are made on the val split, results are reported on the test
    split, and BatchNorm is re-estimated in every row. Stage 2 runs as configured; if it is a search, a cooldown with as
    many passes gets a row too. The output is a table, or with --json the contents of OUT/compare.json. The page
    OUT/compare.html plots the metric on test over passes.

    Example: dimred compare ./digits device0_stage_1
    """
    names = None if methods is None else [name.strip() for name in methods.split(",")]
    try:
        epochs = [int(epoch) for epoch in at.split(",")] if at else []
    except ValueError:
        raise ConfigError(f"--at is {at!r}; give whole numbers separated by commas, such as 20,30,45") from None
    device_target = choose_device(device_target)
    make_ready(device_target)  # before MindSpore is imported
    from dimred.comparison.compare import compare as make_comparison
    from dimred.comparison.results import markdown
    from dimred.launch.signals import StopSignals

    try:
        with StopSignals():
            summary = make_comparison(
                data,
                runs,
                config,
                out,
                methods=names,
                at=epochs,
                overrides=overrides or [],
                resume=resume,
                device_target=device_target,
            )
    except StoppedError as stop:
        raise StoppedError(stop.number, f"the finished rows are in {out}; continue with --resume") from None
    if as_json:
        print(json_text(summary, indent=2))
        return
    print(markdown(summary))
    print(f"{out / 'compare.md'}, {out / 'compare.json'}, {out / 'compare.html'}")


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a stage 1, or of a finished stage 2, or a path in it.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the page; an earlier report in it is replaced. Default: RUN/report."),
    ] = None,
    grid: Annotated[int, typer.Option(min=2, help="Points along each side of the loss surface.")] = 11,
    batches: Annotated[int, typer.Option(min=1, help="Training batches to evaluate each point on.")] = 2,
    device_target: DeviceTargetIfGiven = None,
) -> None:
    """Make a page about a run, report.html, and each of its pictures as PNG and SVG.

    For a stage 2, it shows the curves of both stages, each step of a search, and where both stages lie on the true loss
    surface. For a stage 1, finished or not, it shows the curves and the spectrum of the snapshots. The page needs no
    internet connection.

    Example: dimred report device0_stage_2
    """
    run = (run_of(run) if run.exists() else None) or run
    if not run.is_dir():
        raise ConfigError(f"RUN is {str(run)!r}, which is not a folder; give the folder of a stage 1 or stage 2 run")
    device_target = choose_device(device_target)
    make_ready(device_target)  # before MindSpore is imported
    from dimred.pipelines.report import report as make_report

    print(f"report: {make_report(run, out or run / 'report', grid, batches, device_target)}")


def summary(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="resnet50, resnet18, resnet_small, or your own: package.module:factory."),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[TYPE:]SHAPE",
            help="Shape of the input, batch included, such as 1,3,224,224, or int32:1,128 for tokens; repeat it for "
            "each input. By default 1,3,224,224, for resnet_small 1,3,16,16.",
        ),
    ] = None,
    classes: Annotated[
        int,
        typer.Option(min=1, help="Number of outputs; your own network's factory gets it if it has a parameter for it."),
    ] = 1001,
    as_json: AsJson = False,
) -> None:
    """Print the layers, shapes, parameters and FLOPs of a network.

    The total counts all matrix products and convolutions, including those that the network calls as functions, such as
    q @ k in your own attention, and the additions, normalisations and average pools of the listed layers. A MAC is a
    multiplication and an addition, so it counts as two FLOPs.

    Example: dimred summary resnet50

    Example: dimred summary my_networks:build --input int32:1,128 --input int32:1,128 --json
    """
    shapes = [_parse_input(text) for text in inputs or ()]
    from pydantic import ValidationError

    from dimred.config import ModelConfig

    try:
        ModelConfig(name=model)
    except ValidationError as error:
        raise ConfigError(f"MODEL is {model!r}; {error.errors()[0]['ctx']['error']}") from None
    from dimred.models.built_in import make_named, usual_input
    from dimred.models.summary import Input, summarise

    network = make_named(model, classes)
    of_network = [Input(shape, kind) for kind, shape in shapes] or [Input((1, *usual_input(model)))]
    table = summarise(network, *of_network, count_functions=True)
    if as_json:
        layers = [layer._asdict() for layer in table.layers]
        print(json.dumps(table._asdict() | {"layers": layers, "inputs": [given._asdict() for given in table.inputs]}))
        return
    headings = ("layer", "kind", "input", "output", "parameters", "FLOPs")
    rows = [
        (
            layer.name,
            layer.kind,
            _by(layer.input_shape),
            _by(layer.output_shape),
            f"{layer.n_parameters:,}",
            f"{layer.flops:,}",
        )
        for layer in table.layers
    ]
    if table.function_flops:
        rows.append(("functions", "products outside layers", "", "", "0", f"{table.function_flops:,}"))
    print_table(headings, rows)
    of_inputs = " and ".join(_by(given.shape) for given in table.inputs)
    print(
        f"\n{table.n_parameters:,} trainable parameters ({4 * table.n_parameters / 2**20:.1f} MiB in float32), "
        f"{table.n_other:,} others\n{_in_unit(table.flops, 'FLOPs')} for an input of {of_inputs} "
        f"({_in_unit(table.flops / 2, 'MACs')})"
    )
    if table.not_counted:
        print(f"products outside layers are not counted: the network can't be compiled ({table.not_counted})")


_TYPES = ("float32", "float16", "int32", "int64", "uint8", "bool")
_TYPE_AND_SHAPE = re.compile(r"(?:(\w+):)?([1-9]\d*(?:,[1-9]\d*)*)")
_UNITS = ((1e11, 1e12, "T"), (1e8, 1e9, "G"), (1e5, 1e6, "M"), (1e2, 1e3, "k"))  # (lower limit, unit, its prefix)


def _parse_input(text: str) -> tuple[str, tuple[int, ...]]:
    """Return an input's type and shape from ``int32:1,128`` or ``1,3,224,224``."""
    found = _TYPE_AND_SHAPE.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ConfigError(
            f"--input is {text!r}; give whole numbers above 0, such as 1,3,224,224; if the type is not float32, put it "
            "in front, such as int32:1,128"
        )
    kind = found[1] or "float32"
    if kind not in _TYPES:
        raise ConfigError(f"--input is {text!r}, with the type {kind!r}; allowed: {', '.join(_TYPES)}")
    return kind, tuple(int(number) for number in found[2].split(","))


def _in_unit(number: float, noun: str) -> str:
    """Format a number with three digits, in a unit that makes it at least a tenth: ``0.417 MFLOPs`` for 416,640."""
    for least, unit, letter in _UNITS:
        if number >= least:
            return f"{number / unit:.3g} {letter}{noun}"
    return f"{number:.3g} {noun}"


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
