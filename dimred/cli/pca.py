"""``dimred pca``: compute the basis of the subspace in which a series of snapshots lies."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import psutil
import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TaskID, TimeElapsedColumn, TransferSpeedColumn

from dimred.console import AsJson, check_there
from dimred.errors import ConfigError
from dimred.io.run_names import BASIS

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from dimred.checkpoints.layout import WeightLayout
    from dimred.checkpoints.matrix import WeightMatrix


def pca(
    ckpt_dir: Annotated[
        Path, typer.Option(help="The folder stage 1 wrote its snapshots to (checkpoint_pca).", callback=check_there)
    ],
    out: Annotated[Path, typer.Option(help="The basis; pca_mat.h5 is written beside it.")] = Path(BASIS),
    n_components: Annotated[
        str | None,
        typer.Option(help="How many directions, or the share of variance to explain, such as 0.95; default 32."),
    ] = None,
    basis: Annotated[
        Literal["pca", "snapshots"],
        typer.Option(help="pca, or snapshots: Gram-Schmidt of the raw snapshots, for trainable averaging."),
    ] = "pca",
    skip_first: Annotated[int, typer.Option(help="Leave out the first N snapshots.")] = 0,
    last: Annotated[int | None, typer.Option(help="Of these, take the last N only.")] = None,
    every: Annotated[int, typer.Option(help="Of these, take every N-th, counted back from the newest.")] = 1,
    names_from: Annotated[
        Path | None,
        typer.Option(
            help="Take the names and order of the weights from this checkpoint, manifest.json or pca_mat.npy. Default: "
            "the folder's manifest; without one, everything but statistics, counters and an optimizer's state.",
            callback=check_there,
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out damaged snapshots, and say which.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace another basis in --out; without it an existing one is never touched."),
    ] = False,
    max_memory: Annotated[
        str, typer.Option(help="The process's own memory, such as 500MB; memory-mapped pages are not counted.")
    ] = "1GB",
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print the memory, disk space and time that it will take, and stop."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the basis that stage 2 searches in: pca_mat.npy and pca_mat.h5.

    An existing result is kept unless --force.

    Example: dimred pca --ckpt-dir device0_stage_1/checkpoint_stage_1/checkpoint_pca
    """
    from dimred.checkpoints.matrix import WeightMatrix
    from dimred.checkpoints.series import CheckpointSeries
    from dimred.subspace.fit import fit_basis

    series = CheckpointSeries.open(ckpt_dir).select(skip_first, last, every)
    layout = None if names_from is None else _layout_from(names_from)
    # The interpreter and the libraries hold their share of the limit already. Shared are the memory-mapped pages.
    held = psutil.Process().memory_info()
    memory = parse_bytes(max_memory) - (held.rss - held.shared)
    wanted = parse_components(n_components)
    if plan:
        _print_plan(WeightMatrix(series, layout, skip_bad=skip_bad), wanted, out, memory, as_json)
        return
    with _progress(len(series)) as progress:
        made = fit_basis(
            series, wanted, out=out, kind=basis, layout=layout, overwrite=force, skip_bad=skip_bad, max_memory=memory,
            progress=progress, note=_log.info,
        )  # fmt: skip
    found = made.in_short(made.n_components)
    if as_json:
        print(json.dumps({"path": str(made.path)} | found))
        return
    print(
        f"{made.path}: {made.n_components} directions of {found['n_snapshots']} snapshots of {made.n_weights:,} "
        f"weights, which explain {found['explained_variance']:.2%} of their variance"
    )


def parse_components(text: str | None) -> int | float | None:
    """Parse ``--n-components``: a whole number, or a share with a decimal point."""
    if text is None:
        return None
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise ConfigError(
            f"--n-components is {text!r}; give a whole number such as 32, or a share of the variance such as 0.95."
        ) from None


def parse_bytes(text: str) -> int:
    """Parse ``--max-memory``: a number with an optional unit, B to TB (1000s) or KiB to TiB (1024s)."""
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise ConfigError(f"--max-memory is {text!r}; give a number with a unit, such as 500MB or 2GiB.") from None


@contextmanager
def _progress(n_snapshots: int) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a ``progress`` for ``fit_basis``: a bar of the bytes read on a terminal, elsewhere a line a pass."""
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    is_terminal = sys.stderr.isatty()
    passes: dict[str, tuple[TaskID, float]] = {}  # the bar's task, and when it began
    with Progress(*columns, console=Console(stderr=True), disable=not is_terminal) as bar:

        def report(phase: str, done: int, total: int) -> None:
            each = 4 * n_snapshots
            if done == 0:
                passes[phase] = bar.add_task(phase, total=total * each), time.monotonic()
            task, started = passes[phase]
            bar.update(task, completed=done * each)
            if done == total and not is_terminal:
                seconds, size = max(time.monotonic() - started, 1e-9), total * each
                _log.info(f"{phase}: {size / 1e9:.2f} GB in {seconds:.1f} s ({size / seconds / 1e6:.0f} MB/s)")

        yield report


def _layout_from(path: Path) -> "WeightLayout":
    from dimred.checkpoints.checkpoint_io import read_index
    from dimred.checkpoints.layout import trainable_layout
    from dimred.checkpoints.series import read_manifest
    from dimred.subspace.metadata import metadata_path, read_metadata

    if path.suffix in (".npy", ".h5"):
        layout: WeightLayout = read_metadata(metadata_path(path))["layout"]
        return layout
    if path.suffix == ".json":
        return read_manifest(path)[0]
    return trainable_layout(read_index(path), path)[0]


def _print_plan(matrix: "WeightMatrix", wanted: int | float | None, out: Path, memory: int, as_json: bool) -> None:
    from dimred.subspace.plan import make_plan

    most = max(matrix.shape[0] - 1, 1)
    asked = 32 if wanted is None or isinstance(wanted, float) else wanted
    made = make_plan(matrix, min(asked, most), out.parent, memory)
    if as_json:
        print(json.dumps(asdict(made) | {"most_components": most}))
        return
    print(f"snapshots   {made.n_snapshots} of {made.n_weights:,} weights")
    if asked > most:
        print(
            f"            too few: {asked} directions need {asked + 1} snapshots; below, {most} directions are assumed"
        )
    print(f"reading     {made.read_bytes / 1e9:.2f} GB, twice (the second time from the page cache, where it fits)")
    print(f"disk        {made.disk_bytes / 1e9:.2f} GB in {out.parent}")
    print(f"memory      {made.memory_bytes / 1e6:.0f} MB, beside memory-mapped pages")
    print(f"time        {made.seconds:.0f} s or more, going by the first weights of each snapshot")
