"""Stage 2 beside what it has to beat, from the same stage 1: ``dimred compare``.

Every method has stage 1 up to one epoch: its full checkpoint and its snapshots. What trains is a run of stage 1's or
stage 2's program, in a folder of its own; the networks are measured here. BatchNorm is re-estimated in every row. The
split ``val`` chooses, the split ``test`` reports. A row that is finished is a file, and is not run again.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dimred.comparison.checks import check_comparable, check_rows, claim_folder
from dimred.comparison.methods import METHODS, NEEDS, Comparison
from dimred.comparison.summary import collect, markdown, write_comparison_page
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.errors import ConfigError
from dimred.io.atomic import atomic_write
from dimred.io.run_names import CONFIG, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS, full_checkpoints
from dimred.trainer.device import set_up

_log = logging.getLogger(__name__)


def compare(
    data: str | os.PathLike[str],
    runs: Iterable[str | os.PathLike[str]],
    config: str | os.PathLike[str],
    out: str | os.PathLike[str] = "comparison",
    *,
    methods: Sequence[str] | None = None,
    at: Iterable[int] = (),
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Compare stage 2 with averages of the same snapshots and with plain training, from finished stage 1 runs.

    Args:
        data: folder with train/, val/ and test/; ``{seed}`` in it stands for a run's seed.
        runs: folders of stage 1 runs, one a seed.
        config: stage 2's YAML file, or the name of a recipe.
        out: folder for the results, ``compare.json``, ``compare.md`` and ``compare.html``.
        methods: names from ``METHODS``; all of them by default.
        at: epochs at which stage 1 is taken to end; its last by default.
        overrides: ``key=value``, over the configuration.

    Returns:
        The contents of ``compare.json``, see ``dimred.comparison.summary.collect``.

    Raises:
        DataError: a split is missing.
        ConfigError: an argument is not allowed; a run is of another network, or has not kept what is needed.
        FaultError: a training failed.
    """
    epochs = sorted(set(at))
    if unknown := [name for name in methods or () if name not in METHODS]:
        raise ConfigError(f"--methods has {unknown[0]!r}; allowed: {', '.join(METHODS)}")
    if epochs and epochs[0] < 1:
        raise ConfigError(f"--at has {epochs[0]}; give epochs from 1 on")
    runs = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    if not runs:
        raise ConfigError("no RUN is given; give folders of finished stage 1 runs, one a seed")
    two, folder = load_config(StageTwoConfig, Path(config), overrides), Path(out)
    chosen, seeds = methods or list(METHODS), dict[int, Path]()
    jobs = [job for run in runs for job in _jobs(str(data), Path(run), two, epochs, folder, chosen, seeds)]
    claim_folder(folder, two)
    for job in jobs:
        job()
    summary = collect(folder)
    atomic_write(folder / "compare.json", json.dumps(summary, indent=2) + "\n")
    atomic_write(folder / "compare.md", markdown(summary))
    write_comparison_page(folder, summary)
    return summary


def _jobs(
    data: str,
    run: Path,
    two: StageTwoConfig,
    epochs: Sequence[int],
    out: Path,
    methods: Sequence[str],
    seeds: dict[int, Path],
) -> Iterator[Callable[[], None]]:
    """Check one stage 1, and yield what is to be done for each epoch at which it is taken to end."""
    if (run / STAGE_2_CHECKPOINTS).is_dir():
        raise ConfigError(f"RUN is {str(run)!r}, a run of stage 2; give the folder of the stage 1 that it began from")
    if not (run / CONFIG).is_file():
        raise ConfigError(f"RUN is {str(run)!r}, which has no {CONFIG}; give the folder of a finished stage 1 run")
    one = load_config(StageOneConfig, run / CONFIG)
    if (other := seeds.setdefault(one.seed, run)) is not run:
        raise ConfigError(f"RUN is {str(run)!r}, of seed {one.seed}, which {str(other)!r} has too; give one run a seed")
    ended = max(full_checkpoints(run / STAGE_1_CHECKPOINTS), default=0) if one.stop else one.epochs
    for at in epochs or [ended]:
        own, place = Path(data.replace("{seed}", str(one.seed))), out / f"seed_{one.seed}" / f"at_{at}"
        check_rows(place, own, run)
        wanted = set(methods)
        for method in ("plain_for_total", "average", "stage_2"):  # each after those that need it
            wanted |= {needed for needed in NEEDS.get(method, ()) if method in wanted}
        if at >= (one.schedule.last_epoch or 0):
            wanted.discard("plain_to_the_end")
        if two.search is None:
            wanted.discard("search")
        missing = [name for name in METHODS if name in wanted and not (place / f"{name}.json").exists()]
        if missing:
            check_comparable(own, run, one, two, at, missing)
            yield partial(_run, partial(Comparison, own, run, one, two, at, place), missing, one.seed)


def _run(begin: Callable[[], Comparison], missing: Sequence[str], seed: int) -> None:
    """Run these methods; each leaves its row, ``METHOD.json``."""
    set_up(seed)
    comparison = begin()
    for method in missing:
        _log.info(f"seed {seed}: {method}")
        made = METHODS[method](comparison)
        record = {
            "method": method, "seed": seed, "at": comparison.at, "data": str(comparison.data.resolve()),
            "run": str(comparison.run.resolve()), "metric": comparison.two.metric_name,
            "batch_norm": comparison.on.has_batch_norm, **made._asdict(), **comparison.measured(made.network),
        }  # fmt: skip
        comparison.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(comparison.folder / f"{method}.json", json.dumps(record, indent=2) + "\n")
