"""``dimred show``: print what is in a basis, without MindSpore."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dimred.console import AsJson
from dimred.errors import ConfigError

if TYPE_CHECKING:
    from dimred.subspace.basis import SubspaceBasis


def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="pca_mat.npy (or the pca_mat.h5 beside it).", exists=True)
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Say whether the basis fits this checkpoint; exit status 1 if not.", exists=True),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what is in a basis: its snapshots, and the variance along each direction.

    The whole file is read and verified. With --checkpoint it also says whether the basis fits.

    Example: dimred show pca_mat.npy --checkpoint resnet50-70_625.ckpt
    """
    from dimred.subspace.basis import load_basis

    if file.suffix not in (".npy", ".h5"):
        raise ConfigError(f"FILE is {str(file)!r}, which is not a basis; give the pca_mat.npy that dimred pca wrote")
    basis = load_basis(file)
    difference = None if checkpoint is None else _difference(basis, checkpoint)
    facts: dict[str, Any] = {"path": str(basis.path), "n_components": basis.n_components, "n_weights": basis.n_weights}
    if basis.layout is not None:
        names = ("singular_values", "explained_variance_ratio")
        facts |= {"kind": basis.kind, "deviation": basis.deviation}
        facts |= {"n_parameters": len(basis.layout.names), "fingerprint": basis.layout.fingerprint}
        facts |= {name: getattr(basis, name).tolist() for name in names}
        facts["snapshots"] = [asdict(source) for source in basis.snapshots]
    if checkpoint is not None:
        facts |= {"fits": difference is None, "difference": difference}
    if as_json:
        print(json.dumps(facts))
    else:
        print("\n".join(_describe(facts)))
        if checkpoint is not None:
            print(f"fits        {checkpoint}: " + (f"no, {difference}" if difference else "yes"))
    if difference:
        raise typer.Exit(1)


def _describe(facts: dict[str, Any]) -> Iterator[str]:
    yield f"basis       {facts['path']}"
    yield f"size        {facts['n_components']} directions of {facts['n_weights']:,} weights"
    if "kind" not in facts:
        return
    kinds = {"pca": "principal directions", "snapshots": "Gram-Schmidt of the raw snapshots"}
    snapshots = facts["snapshots"]
    fractions = facts["explained_variance_ratio"]
    first, last = (f"{snapshots[place]['file']} (step {snapshots[place]['step']})" for place in (0, -1))
    yield f"kind        {kinds[facts['kind']]}"
    yield f"network     {facts['n_parameters']} parameters, fingerprint {facts['fingerprint'][:16]}"
    yield f"snapshots   {len(snapshots)}: {first} to {last}"
    yield f"rows        orthonormal to {facts['deviation']:.1e}, unchanged since they were written"
    yield f"explained   {sum(fractions):.3%} of the snapshots' variance"
    yield "\ndirection   singular value fraction      sum"
    rows = zip(facts["singular_values"], fractions, accumulate(fractions), strict=True)
    for number, (value, fraction, total) in enumerate(rows, 1):
        yield f"{number:9d}   {value:14.6g}   {fraction:8.3%}  {total:8.3%}  {'#' * round(40 * fraction)}".rstrip()
    yield "\nstep        snapshot and digest of its weights"
    for source in snapshots:
        yield f"{source['step']:<11d} {source['file']}  {source['digest'][:16]}"
    yield ""


def _difference(basis: "SubspaceBasis", checkpoint: Path) -> str | None:
    from dimred.merging.folder import read_one

    there = read_one(checkpoint)
    if basis.layout is not None:
        return there.misfit(basis.layout)
    size = there.layout.size
    return None if size == basis.n_weights else f"it has {size:,} weights instead of {basis.n_weights:,}"
