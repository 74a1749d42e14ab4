"""``dimred summary``: print the size and cost of a network."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from dimred.console import AsJson
from dimred.errors import ConfigError

if TYPE_CHECKING:
    from dimred.models.summary import Summary


def summary(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="resnet50, resnet18, resnet_small, or your own: package.module:factory."),
    ],
    input_shape: Annotated[
        str | None, typer.Option(help="Shape of the input, batch included; 1,3,224,224, for resnet_small 1,3,16,16.")
    ] = None,
    classes: Annotated[
        int, typer.Option(min=2, help="Outputs; of your own network the argument of its factory.")
    ] = 1001,
    as_json: AsJson = False,
) -> None:
    """Print the layers, shapes, parameters and FLOPs of a network, for one forward pass.

    Example: dimred summary resnet50

    Example: dimred summary my_networks:build --input-shape 1,1,28,28 --json
    """
    shape = _parse_shape(input_shape or ("1,3,16,16" if model == "resnet_small" else "1,3,224,224"))
    from pydantic import ValidationError

    from dimred.config import ModelConfig

    try:
        ModelConfig(name=model)
    except ValidationError as error:
        raise ConfigError(f"MODEL is {model!r}; {error.errors()[0]['ctx']['error']}") from None
    from dimred.models.factory import make_cell
    from dimred.models.resnet import resnet
    from dimred.models.summary import summarise

    found = summarise(make_cell(model, classes) if ":" in model else resnet(model, classes), shape)
    if as_json:
        print(json.dumps(found._asdict() | {"layers": [layer._asdict() for layer in found.layers]}))
    else:
        _print_summary(found)


def _parse_shape(text: str) -> tuple[int, ...]:
    parts = text.split(",")
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
