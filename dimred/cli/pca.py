"""``dimred pca``: make a search basis out of stage 1's snapshots, without MindSpore."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dimred.cli.options import options_in_errors
from dimred.console import AsJson
from dimred.run_files.run_names import BASIS

if TYPE_CHECKING:
    from dimred.checkpoints.layout import WeightLayout


def pca(
    ckpt_dir: Annotated[
        Path, typer.Option(help="The folder stage 1 wrote its snapshots to (checkpoint_pca).", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="The basis, a .npy file; its .h5 file is written beside it.")] = Path(BASIS),
    n_components: Annotated[
        int | None, typer.Option(min=1, help="Number of directions; by default 32, or all with --basis snapshots.")
    ] = None,
    basis: Annotated[
        Literal["pca", "snapshots"],
        typer.Option(help="pca, or snapshots: Gram-Schmidt of the raw snapshots, for trainable weight averaging."),
    ] = "pca",
    last: Annotated[int | None, typer.Option(help="Take only the last N snapshots.")] = None,
    names_from: Annotated[
        Path | None,
        typer.Option(
            help="Take the names and order of the weights from this checkpoint of the network alone, manifest.json or "
            "pca_mat.npy. Default: the folder's manifest; without one, all floats except running statistics.",
            exists=True,
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out damaged snapshots, and say which.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the basis that a search uses, pca_mat.npy and pca_mat.h5, from stage 1's snapshots.

    If --out exists, it is replaced only with --force.

    Example: dimred pca --ckpt-dir device0_stage_1/checkpoint_stage_1/checkpoint_pca
    """
    from dimred.checkpoints.series import CheckpointSeries
    from dimred.subspace.fit import fit_basis

    with options_in_errors("last"):
        series = CheckpointSeries.open(ckpt_dir, argument="--ckpt-dir").select(last)
    layout = None if names_from is None else _layout_from(names_from)

    with options_in_errors("out", "n_components", "skip_bad", kind="--basis", overwrite="--force"):
        result = fit_basis(series, n_components, out=out, kind=basis, layout=layout, overwrite=force, skip_bad=skip_bad)
    facts = {"path": str(result.path)} | result.in_short(result.n_components)
    sentence = (
        "{path}: {n_components} directions from {n_snapshots} snapshots of {n_weights:,} weights; they explain "
        "{explained_variance:.2%} of the snapshots' variance"
    )
    print(json.dumps(facts) if as_json else sentence.format(**facts))


def _layout_from(path: Path) -> "WeightLayout":
    from dimred.merging.inputs import layout_from
    from dimred.subspace.metadata import metadata_path, read_metadata

    if path.suffix in (".npy", ".h5"):
        layout: WeightLayout = read_metadata(metadata_path(path))["layout"]
        return layout
    return layout_from(path)
