"""``dimred summary``: layers, shapes, parameters and FLOPs of a network."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from dimred.console import AsJson
from dimred.errors import ConfigError

if TYPE_CHECKING:
    from dimred.models.summary import Summary

_DEFAULT_SIZE = {"resnet_small": 16}


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
    classes: Annotated[int, typer.Option(min=2, help="Outputs of resnet*.")] = 1001,
    as_json: AsJson = False,
) -> None:
    """Layers, shapes, parameters and FLOPs of a network, for one forward pass.

    Example: dimred summary resnet50

    Example: dimred summary my_networks:build --input-shape 1,1,28,28 --json
    """
    shape = _shape(model, input_size, input_shape)
    from dimred.models.factory import make_network
    from dimred.models.resnet import resnet
    from dimred.models.summary import summarise

    found = summarise(make_network(model) if ":" in model else resnet(model, classes), shape)
    if as_json:
        print(json.dumps(found._asdict() | {"layers": [layer._asdict() for layer in found.layers]}))
    else:
        _show(found)


def _shape(model: str, input_size: int | None, input_shape: str | None) -> tuple[int, ...]:
    if input_shape is None:
        size = _DEFAULT_SIZE.get(model, 224) if input_size is None else input_size
        return (1, 3, size, size)
    if input_size is not None:
        raise ConfigError("give --input-size or --input-shape, not both")
    parts = input_shape.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--input-shape is {input_shape!r}; expected whole numbers above 0, such as 1,3,224,224")
    return tuple(int(part) for part in parts)


def _show(found: "Summary") -> None:
    rows = [["layer", "kind", "input", "output", "parameters", "FLOPs"]]
    for layer in found.layers:
        shapes = [_by(layer.input_shape), _by(layer.output_shape)]
        rows.append([layer.name, layer.kind, *shapes, f"{layer.n_parameters:,}", f"{layer.flops:,}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = [text.ljust(width) for text, width in zip(row[:4], widths[:4], strict=True)]
        numbers = [text.rjust(width) for text, width in zip(row[4:], widths[4:], strict=True)]
        print("  ".join([*texts, *numbers]))
    mebibytes = 4 * found.n_parameters / 2**20
    print(
        f"\n{found.n_parameters:,} parameters that train ({mebibytes:.1f} MiB in float32), {found.n_other:,} others\n"
        f"{found.flops / 1e9:.3f} GFLOPs for an input of {_by(found.input_shape)} ({found.flops / 2e9:.3f} G "
        "multiply-adds)"
    )


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
