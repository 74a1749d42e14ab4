"""``dimred convert``: PyTorch's pickles to safetensors."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dimred.cli.options import options_in_errors
from dimred.console import AsJson, print_table


def convert(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES...", help="Files (.pt, .pth, .bin, .ckpt), globs, or folders, with all below."),
    ],
    key: Annotated[
        str | None,
        typer.Option(help="Which weights of a file, such as ema or model.encoder; by default the only raw ones."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write, or for folders a folder; by default beside each file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert PyTorch's pickles of weights to safetensors, which merge and pca read.

    It needs PyTorch, which is asked to load weights only, so that no code of a file is run. A file may hold state_dicts
    at any depth, a whole module, TorchScript, a checkpoint of Lightning, or a shard. Optimizer states are left alone.

    Example: dimred convert RUN

    Example: dimred convert last.ckpt --key ema --out last-ema.safetensors
    """
    from dimred.merging.convert import convert as run

    with options_in_errors("key", "out", "force"):
        conversions = run(files, key=key, out=out, force=force)
    if as_json:
        print(json.dumps({"converted": [one._asdict() for one in conversions]}))
        return
    rows = [
        [one.out, one.key or "the file itself", one.kind, str(one.n_tensors), f"{one.n_numbers:,}"]
        for one in conversions
    ]
    print_table(("file", "from", "weights", "tensors", "numbers"), rows)
    for others in dict.fromkeys(one.others for one in conversions if one.others):
        print(f"Not taken: {', '.join(others)}; --key takes them.")
    for names in dict.fromkeys(names for one in conversions for names in one.ties):
        print(f"Tied, each written with its values: {', '.join(names)}.")
