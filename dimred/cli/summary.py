"""``dimred summary``: layers, shapes, parameters and FLOPs of a network."""

import json
from typing import Annotated, Any

import typer

from dimred.console import AsJson
from dimred.errors import ConfigError

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

    network = make_network(model) if ":" in model else resnet(model, classes)
    found = summarise(network, shape)
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


def _show(found: Any) -> None:
    rows = [("layer", "kind", "input", "output", "parameters", "FLOPs")]
    rows += [
        (
            layer.name,
            layer.kind,
            _by(layer.input_shape),
            _by(layer.output_shape),
            f"{layer.n_parameters:,}",
            f"{layer.flops:,}",
        )
        for layer in found.layers
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            text.ljust(width) if column < 4 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print(
        f"\n{found.n_parameters:,} parameters that train ({4 * found.n_parameters / 2**20:.1f} MiB in float32), "
        f"{found.n_other:,} others"
    )
    print(
        f"{found.flops / 1e9:.3f} GFLOPs for an input of {_by(found.input_shape)} ({found.flops / 2e9:.3f} G "
        "multiply-adds)"
    )


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)
