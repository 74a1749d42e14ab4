"""``dimred convert``: convert a PyTorch pickle to safetensors."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dimred.cli.options import options_in_errors
from dimred.console import AsJson


def convert(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A PyTorch file (.pt, .pth, .bin, .ckpt).", exists=True, dir_okay=False),
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="Which weights to take, such as ema or model.encoder; may be repeated. Default: FILE's weights, if it "
            "has a single set."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; by default beside FILE.")] = None,
    as_json: AsJson = False,
) -> None:
    """Convert the weights in a PyTorch file to safetensors, which dimred merge reads.

    It needs PyTorch, and makes it load weights only, so that no code in the file runs.

    Example: dimred convert last.ckpt --key ema --out last-ema.safetensors

    Example: for file in run/*.pt; do dimred convert "$file"; done
    """
    from dimred.merging.convert import convert as run

    with options_in_errors("key", "out"):
        conversion = run(file, keys=key or (), out=out)
    if as_json:
        print(json.dumps(conversion._asdict()))
        return
    of = " and ".join(conversion.keys)
    of = f" of {of}" if of else ""
    print(f"{conversion.out}: {conversion.n_tensors} tensors{of}, {conversion.n_numbers:,} numbers")
