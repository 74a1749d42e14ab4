"""``dimred show``: describe a basis."""

import json
import logging
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dimred.console import AsJson, check_there
from dimred.errors import ConfigError

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from dimred.subspace.basis import SubspaceBasis


def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="pca_mat.npy (or the pca_mat.h5 beside it).", callback=check_there)
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Say whether the basis fits this checkpoint; exit status 1 if not.", callback=check_there),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a basis: its snapshots, what each direction explains, whether it fits a checkpoint.

    The whole file is read and checked.

    Example: dimred show pca_mat.npy --checkpoint resnet-70_625.ckpt
    """
    from dimred.subspace.basis import load_basis

    if file.suffix not in (".npy", ".h5"):
        raise ConfigError(f"FILE is {str(file)!r}, which is no basis; give the pca_mat.npy that dimred pca wrote")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        basis = load_basis(file.with_suffix(".npy"))
    for warning in caught:
        _log.warning(f"{warning.message}")
    difference = None if checkpoint is None else _difference(basis, checkpoint)
    if as_json:
        fits = {} if checkpoint is None else {"fits": difference is None, "difference": difference}
        print(json.dumps(_facts(basis) | fits))
    else:
        print("\n".join(_describe(basis)))
        if checkpoint is not None:
            print(f"fits        {checkpoint}: " + (f"no, {difference}" if difference else "yes"))
    if difference:
        raise typer.Exit(1)


def _facts(basis: "SubspaceBasis") -> dict[str, Any]:
    facts = {"path": str(basis.path), "n_components": basis.n_components, "n_weights": basis.n_weights}
    if basis.layout is None or basis.singular_values is None or basis.explained_variance_ratio is None:
        return facts
    return facts | {
        "kind": basis.kind,
        "fingerprint": basis.layout.fingerprint,
        "deviation": basis.deviation,
        "singular_values": basis.singular_values.tolist(),
        "explained_variance_ratio": basis.explained_variance_ratio.tolist(),
        "snapshots": [asdict(source) for source in basis.snapshots],
    }


def _describe(basis: "SubspaceBasis") -> list[str]:
    lines = [f"basis       {basis.path}", f"size        {basis.n_components} directions of {basis.n_weights:,} weights"]
    if basis.layout is None or basis.singular_values is None or basis.explained_variance_ratio is None:
        return lines
    kinds = {"pca": "principal directions", "snapshots": "Gram-Schmidt of the raw snapshots"}
    first, last = basis.snapshots[0], basis.snapshots[-1]
    shares = basis.explained_variance_ratio
    lines += [
        f"kind        {kinds[str(basis.kind)]}",
        f"network     {len(basis.layout.names)} parameters, fingerprint {basis.layout.fingerprint[:16]}",
        f"snapshots   {len(basis.snapshots)}: {first.file} (step {first.step}) to {last.file} (step {last.step})",
        f"rows        orthonormal to {basis.deviation:.1e}, unchanged since they were written",
        f"explained   {shares.sum():.3%} of the snapshots' variance",
        "",
        "direction   singular value    share      sum",
    ]
    rows = zip(basis.singular_values, shares, shares.cumsum(), strict=True)
    for number, (value, share, total) in enumerate(rows, 1):
        bar = "#" * round(40 * float(share))
        lines.append(f"{number:9d}   {value:14.6g}   {share:8.3%}  {total:8.3%}  {bar}".rstrip())
    lines += ["", "step        snapshot and digest of its weights"]
    return [*lines, *(f"{source.step:<11d} {source.file}  {source.digest[:16]}" for source in basis.snapshots), ""]


def _difference(basis: "SubspaceBasis", checkpoint: Path) -> str | None:
    from dimred.checkpoints.checkpoint_io import read_index
    from dimred.checkpoints.layout import trainable_layout

    index = read_index(checkpoint)
    if basis.layout is not None:
        return basis.layout.misfit({name: tensor.shape for name, tensor in index.items()})
    found = trainable_layout(index, checkpoint)[0].size
    if found == basis.n_weights:
        return None
    return f"it has {found:,} weights instead of {basis.n_weights:,}"
