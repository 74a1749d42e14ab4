"""``dimred rebuild``: the network of any step of a search."""

from pathlib import Path
from typing import Annotated

import typer


def rebuild(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="subspace_path.json, written by stage 2 with alpha=0.")],
    start: Annotated[Path, typer.Option(help="The checkpoint that the search started from.")],
    basis: Annotated[Path, typer.Option(help="The pca_mat.npy that it searched in.")],
    out: Annotated[Path, typer.Option(help="The checkpoint to write; an existing file is not replaced.")],
    step: Annotated[int | None, typer.Option(help="0 is the start; default the last step.")] = None,
) -> None:
    """Rebuild the network of any step of a search from its start and k numbers.

    BatchNorm statistics are those of the start: re-estimate them before use.

    Example: dimred rebuild subspace_path.json --start resnet-start.ckpt --basis pca_mat.npy --step 17 --out at17.ckpt
    """
    from dimred.errors import ConfigError
    from dimred.subspace.basis import load_basis
    from dimred.subspace.path import read_path
    from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint

    if out.exists():
        raise ConfigError(f"--out is {str(out)!r}, which exists already; name another file")
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
