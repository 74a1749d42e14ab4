"""``dimred pca``, ``show`` and ``merge``: make a basis or one network out of checkpoints, without MindSpore."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dimred.averaging.windows import PROFILES
from dimred.cli.options import options_in_errors
from dimred.console import AsJson, print_table
from dimred.errors import ConfigError
from dimred.io.run_names import BASIS

# The arguments that errors of the Python functions may name, in place of which a command names its options.
_ARGUMENTS_OF_PCA = ("out", "n_components", "kind", "overwrite", "skip_bad")
_ARGUMENTS_OF_MERGE = (
    "out", "metric", "metric_command", "minimize", "maximize", "budget", "timeout", "resume", "profile", "last",
    "from_step", "to_step", "order", "names_from", "dtype", "rest", "lora_rank",
)  # fmt: skip

if TYPE_CHECKING:
    from dimred.checkpoints.layout import WeightLayout
    from dimred.subspace.basis import SubspaceBasis


def pca(
    ckpt_dir: Annotated[
        Path, typer.Option(help="The folder stage 1 wrote its snapshots to (checkpoint_pca).", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="The basis, a .npy file; its .h5 file is written beside it.")] = Path(BASIS),
    n_components: Annotated[
        int | None, typer.Option(min=1, help="Number of directions; by default 32, for --basis snapshots all.")
    ] = None,
    basis: Annotated[
        Literal["pca", "snapshots"],
        typer.Option(help="pca, or snapshots: Gram-Schmidt of the raw snapshots, for trainable weight averaging."),
    ] = "pca",
    last: Annotated[int | None, typer.Option(help="Take the last N snapshots only.")] = None,
    names_from: Annotated[
        Path | None,
        typer.Option(
            help="Take the names and order of the weights from this checkpoint of the network alone, manifest.json or "
            "pca_mat.npy. Default: the folder's manifest; without one, all floats that are no running statistics.",
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

    with options_in_errors(*_ARGUMENTS_OF_PCA):
        result = fit_basis(series, n_components, out=out, kind=basis, layout=layout, overwrite=force, skip_bad=skip_bad)
    facts = {"path": str(result.path)} | result.in_short(result.n_components)
    sentence = (
        "{path}: {n_components} directions of {n_snapshots} snapshots of {n_weights:,} weights, which explain "
        "{explained_variance:.2%} of their variance"
    )
    print(json.dumps(facts) if as_json else sentence.format(**facts))


def _layout_from(path: Path) -> "WeightLayout":
    from dimred.merging.folder import read_one
    from dimred.merging.inputs import layout_from
    from dimred.subspace.metadata import metadata_path, read_metadata

    if path.suffix in (".npy", ".h5"):
        layout: WeightLayout = read_metadata(metadata_path(path))["layout"]
        return layout
    if path.suffix == ".json":
        return layout_from(path)
    return read_one(path).layout


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
    snapshots, fractions = facts["snapshots"], facts["explained_variance_ratio"]
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


def merge(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINTS...", help="A folder; or files (.safetensors, .ckpt), folders of shards, globs."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write; for shards, the folder.")],
    last: Annotated[int | None, typer.Option(help="Take the newest N only.")] = None,
    from_step: Annotated[int | None, typer.Option(help="First step to take.")] = None,
    to_step: Annotated[int | None, typer.Option(help="Last step to take.")] = None,
    order: Annotated[
        str,
        typer.Option(help="By step (the numbers in the names), name or mtime."),
    ] = "step",
    profile: Annotated[
        str | None,
        typer.Option(help=f"How checkpoints are weighted without a metric, by default uniform: {PROFILES}."),
    ] = None,
    names_from: Annotated[
        Path | None,
        typer.Option(
            help="Average only what this checkpoint or manifest.json names; by default all floats.",
            exists=True,
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of the result, such as float32; by default that of the checkpoints.")
    ] = None,
    rest: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to copy all else from; by default the last."),
    ] = None,
    lora_rank: Annotated[int | None, typer.Option(help="For LoRA adapters: largest rank; exact by default.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="Function that scores a candidate by path or tensors."),
    ] = None,
    metric_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Command with {} for the path, and {split} for the split; it prints the score last."
        ),
    ] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="A lower score of the metric is better.")] = False,
    maximize: Annotated[bool, typer.Option("--maximize", help="A higher score of the metric is better.")] = False,
    budget: Annotated[
        int | None,
        typer.Option(help="At most this many evaluations on the metric's split 'search'; by default all candidates."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of one evaluation.")] = 3600.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the scores of a call that was stopped, killed or failed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Average checkpoints, or choose the best of many averages by a metric of your own.

    It reads checkpoints of PyTorch, Hugging Face, JAX (safetensors) and MindSpore, and keeps their layout.
    BatchNorm statistics must be re-estimated: the metric's file may define a function reestimate(candidate) for that;
    for MindSpore, dimred eval does it. LoRA adapters are averaged by what they add to the network.

    Example: dimred merge RUN --last 5 --out avg.safetensors

    Example: dimred merge RUN --metric my_metric.py:score --maximize --out best.safetensors
    """
    from dimred.merging.merge import merge as run
    from dimred.merging.record import sentences_of, tables_of

    with options_in_errors(*_ARGUMENTS_OF_MERGE):
        record = run(
            checkpoints, out, last=last, from_step=from_step, to_step=to_step, order=order, profile=profile,
            names_from=names_from, dtype=dtype, rest=rest, lora_rank=lora_rank, metric=metric,
            metric_command=metric_command, minimize=minimize, maximize=maximize, budget=budget, timeout=timeout,
            resume=resume,
        )  # fmt: skip
    if as_json:
        print(json.dumps(record))
        return
    for headings, rows in tables_of(record):
        print_table(headings, rows)
    print(*sentences_of(record), sep="\n")
    print(f"{out}, {out}.json" + (f", {out}.merge/scores.jsonl" if "table" in record else ""))
