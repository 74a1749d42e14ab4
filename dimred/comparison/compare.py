"""``dimred compare``: compare stage 2 with its rivals, from the same stage 1.

Stage 1 is treated as if it had ended at some epoch, with its full checkpoint and its snapshots until then. A method
starts there, or trains from the beginning for as many passes. The stage 1 or stage 2 program trains its network in a
separate folder; this module measures it, with re-estimated BatchNorm statistics. The split ``val`` chooses among
networks, and the split ``test`` says how good they are. A method's result is a row, kept in a file, so that a resumed
call does not run the method again.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

from dimred.comparison.comparison import SPLITS, STAGE_2, Comparison
from dimred.comparison.methods import METHODS, ComparedMethod
from dimred.comparison.results import collect, markdown, write_comparison_page
from dimred.comparison.rows import read_row
from dimred.comparison.runs import DivergedRunError, checkpoint_of
from dimred.config import StageOneConfig, StageTwoConfig, config_text, load_config
from dimred.errors import ConfigError, check_choice, check_type, checked_list
from dimred.io.atomic import atomic_write, make_folder, remove_leftovers, writable
from dimred.io.checksums import write_checksummed
from dimred.io.file_format import COMPARED
from dimred.launch.device import Target
from dimred.run_files.metrics_file import finite, json_text
from dimred.run_files.run_names import (
    CONFIG,
    PINS,
    STAGE_1_CHECKPOINTS,
    STAGE_2_CHECKPOINTS,
    full_checkpoints,
    own_config,
    results_in,
)
from dimred.runs.begun import Begun, pins_of_data
from dimred.runs.device import Mode, set_up
from dimred.runs.splits import build_splits
from dimred.stages.disk import snapshots_in_the_end
from dimred.stages.parent import StageOneRun

_log = logging.getLogger(__name__)
_PATH = (str, os.PathLike)


def compare(
    data: str | os.PathLike[str],
    runs: Iterable[str | os.PathLike[str]],
    config: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "comparison",
    *,
    methods: Sequence[str] | None = None,
    at: Iterable[int] = (),
    overrides: Sequence[str] = (),
    resume: bool = False,
    device_target: Target = "CPU",
) -> dict[str, Any]:
    """Compare stage 2 with averages of the same snapshots and with plain training, from finished stage 1 runs.

    Args:
        data: folder with train/, val/ and test/; ``{seed}`` in it stands for a run's seed.
        runs: folders of stage 1 runs, one for each seed.
        config: a YAML file with stage 2, or a recipe's name; None for the first run's configuration.
        out: folder for the results, ``compare.json``, ``compare.md`` and ``compare.html``.
        methods: names from ``METHODS``; by default all that apply. Methods whose results they need are run too.
        at: epochs at which to treat stage 1 as ended; by default its last.
        overrides: ``key=value``, to replace entries in the configuration.
        resume: whether to continue with the rows that an earlier call left in ``out``.
        device_target: the kind of device to compute on; for GPU, ``dimred.use_gpu`` must have been called.

    Returns:
        The contents of ``compare.json``; see ``dimred.comparison.results.collect``.

    Raises:
        DataError: a split is missing.
        ConfigError: an argument is not allowed; ``out`` has rows and ``resume`` is not set; or a run has a different
            network, or has not kept what is needed.
        SeriesError: a run has no snapshots, or too few for the search.
        FaultError: stage 2 diverged, or a training run failed in another way. A rival that diverges is left out of the
            tables, and a sentence says so.
    """
    check_type("data", data, _PATH, "the path of a folder")
    check_type("config", config, (*_PATH, type(None)), "a YAML file, or the name of a recipe")
    check_type("out", out, _PATH, "the path of a folder")
    check_choice("device_target", device_target, get_args(Target))
    epochs = sorted({*checked_list("at", at, int, "a list of epochs, such as [20, 30]")})
    overrides = checked_list("overrides", overrides, str, "a list of texts, such as ['search.rho=0.5']")
    if methods is not None:
        methods = checked_list("methods", methods, str, "a list of names, such as ['stage_2', 'cooldown']")
    if strangers := [name for name in methods or () if name not in METHODS]:
        raise ConfigError(f"--methods has {strangers[0]!r}; allowed: {', '.join(METHODS)}")
    if epochs and epochs[0] < 1:
        raise ConfigError(f"--at has {epochs[0]}; give epochs from 1 on")
    if isinstance(runs, _PATH):
        runs = [runs]
    runs = checked_list("runs", runs, _PATH, "a list of folders of finished stage 1 runs")
    if not runs:
        raise ConfigError("no RUN is given; give folders of finished stage 1 runs, one for each seed")
    first, *_ = [_config_of(Path(run)) for run in runs]
    config_2 = load_config(StageTwoConfig, Path(config or first), overrides)
    config_2 = config_2.model_copy(update={"seed": 1})  # each run replaces it with its own seed
    folder = Path(out)
    _check_folder(folder, config_2, resume=resume)
    seeds = dict[int, Path]()
    jobs = [
        job
        for run in runs
        for job in _jobs(str(data), Path(run), config_2, epochs, folder, methods, seeds, device_target)
    ]
    if not (folder / CONFIG).exists():
        with writable("--out", folder):
            make_folder(folder)
            remove_leftovers(folder)
            atomic_write(folder / CONFIG, config_text(config_2))
    for job in jobs:
        job()
    summary = collect(folder)
    atomic_write(folder / "compare.json", json_text(summary, indent=2) + "\n")
    atomic_write(folder / "compare.md", markdown(summary))
    write_comparison_page(folder, summary)
    return summary


def _config_of(run: Path) -> Path:
    """Return the path of a stage 1's configuration; ConfigError if ``run`` is not a stage 1 folder."""
    if (run / STAGE_2_CHECKPOINTS).is_dir():
        raise ConfigError(f"RUN is {str(run)!r}, which is a stage 2 run; give the folder of a finished stage 1")
    if not (run / CONFIG).is_file():
        raise ConfigError(f"RUN is {str(run)!r}, which has no {CONFIG}; give the folder of a finished stage 1")
    return own_config(run)


def _jobs(
    data: str,
    run: Path,
    config_2: StageTwoConfig,
    epochs: Sequence[int],
    out: Path,
    methods: Sequence[str] | None,
    seeds: dict[int, Path],
    device_target: Target,
) -> Iterator[Callable[[], None]]:
    """Check a stage 1, and yield a job for each epoch at which it is treated as ended and a row is missing."""
    config_1 = load_config(StageOneConfig, own_config(run))
    if config_1.optimizer.name == "schedule_free":
        raise ConfigError(
            f"RUN is {str(run)!r}, trained with schedule_free, so stage 2 has nothing to do; give a run with "
            "another optimizer: compare trains schedule-free SGD itself, as a row of its own"
        )
    other = seeds.setdefault(config_1.seed, run)
    if other is not run:
        raise ConfigError(
            f"RUN is {str(run)!r}, which has the same seed {config_1.seed} as {str(other)!r}; give one run per seed"
        )
    last_epoch = max(full_checkpoints(run / STAGE_1_CHECKPOINTS), default=0) if config_1.stop else config_1.epochs
    for at in epochs or [last_epoch]:
        images = Path(data.replace("{seed}", str(config_1.seed)))
        folder = out / f"seed_{config_1.seed}" / f"at_{at}"
        chosen = _chosen(methods, config_1, config_2, at)
        missing = [method for method in chosen if not (folder / f"{method.name}.json").exists()]
        digests = _check_comparable(images, run, config_1, config_2, at, missing)
        _check_digests(folder, digests)
        n_ranks = _check_begun(run, images, digests)
        if missing:
            begin = partial(Comparison, images, run, config_1, config_2, at, folder, n_ranks, device_target)
            yield partial(_run, begin, missing, config_1.seed, digests, device_target, config_2.mode)


def _chosen(
    names: Sequence[str] | None, config_1: StageOneConfig, config_2: StageTwoConfig, at: int
) -> list[ComparedMethod]:
    """Return the methods to run, in the order of METHODS: those named, or all that apply; and stage 2 if one needs it.

    Raises:
        ConfigError: a named method does not apply to this stage 1.
    """
    reasons = {name: method.why_left_out(config_1, config_2, at) for name, method in METHODS.items()}
    for name in names or ():
        if reasons[name] is not None:
            raise ConfigError(f"--methods has {name!r}, which does not apply here: {reasons[name]}; leave it out")
    chosen = {name for name in names or METHODS if reasons[name] is None}
    if any(METHODS[name].needs_stage_2 for name in chosen):
        chosen.add(STAGE_2)
    return [method for name, method in METHODS.items() if name in chosen]


def _run(
    begin: Callable[[], Comparison],
    missing: Sequence[ComparedMethod],
    seed: int,
    digests: Mapping[str, str],
    device_target: Target,
    mode: Mode,
) -> None:
    """Run the missing methods, and write a row, ``METHOD.json``, for each, with the digests of RUN and DATA."""
    set_up(seed, device_target, mode=mode)
    comparison = begin()
    for method in missing:
        _log.info(f"seed {seed}: {method.name}")
        record = {
            "method": method.name,
            "title": method.title_with(comparison.config_2),
            "seed": seed,
            "at": comparison.at,
            "data": str(comparison.data.resolve()),
            "run": str(comparison.run.resolve()),
            "digests": digests,
            "metrics": [asdict(metric) for metric in comparison.metrics],
            "batch_norm": comparison.evaluator.has_batch_norm,
        }
        try:
            result = method.make(comparison)
            record |= {**result._asdict(), **comparison.measure(result.network)}
        except DivergedRunError as fault:
            if method.is_needed:
                raise
            _log.warning(f"seed {seed}: {method.name} has no network, because its training diverged: {fault}")
            record |= {"diverged": fault.rates, "seconds": fault.seconds}
        make_folder(comparison.folder)
        write_checksummed(comparison.folder / f"{method.name}.json", COMPARED, finite(record))


def _check_comparable(
    data: Path,
    run: Path,
    config_1: StageOneConfig,
    config_2: StageTwoConfig,
    at: int,
    methods: Iterable[ComparedMethod],
) -> dict[str, str]:
    """Check that stage 1 kept what the methods need at epoch ``at``, and that stage 2 continues the same task.

    Returns:
        The digests of stage 1's full checkpoint and the splits, under ``RUN``, ``DATA/train`` and so on.

    Raises:
        ConfigError, DataError, SeriesError: something is missing, or does not match.
    """
    checkpoint = checkpoint_of(run, at)
    first = config_1.snapshots.first_epoch
    if at < first:
        raise ConfigError(
            f"RUN is {str(run)!r}, which keeps snapshots from epoch {first} on, but is to be compared at epoch {at}; "
            "name later epochs with --at, or train it with an earlier snapshots.first_epoch"
        )
    images = build_splits(config_1, data, SPLITS, val_chooses=True)
    parent = StageOneRun.open(checkpoint)
    parent.check_continued_by(config_2)
    n_snapshots = len(parent.snapshots())
    would_have = snapshots_in_the_end(config_1.model_copy(update={"epochs": at}), parent.steps_per_epoch)
    if n_snapshots < would_have:
        _log.warning(
            f"{run} has {n_snapshots} of the {would_have} snapshots that it would have if it had ended at epoch {at}; "
            "later ones replaced the others. Train it with a larger snapshots.keep for a fair comparison"
        )
    for method in methods:
        method.check(parent, config_2)
    return {"RUN": parent.digest} | {name: pin.digest for name, pin in pins_of_data(data, images).items()}


def _check_begun(run: Path, data: Path, digests: Mapping[str, str]) -> int:
    """Check that stage 1 was trained on DATA, and return the number of ranks that its folder gives."""
    begun = Begun.open(run, StageOneConfig)
    if begun is None:
        raise ConfigError(f"RUN is {str(run)!r}, which has no {PINS}; give the folder of a finished stage 1 run")
    train = begun.pins["DATA/train"]
    if train.digest != digests["DATA/train"]:
        raise ConfigError(
            f"DATA is {str(data)!r}, whose 'train' has {digests['DATA/train']}, but {str(run)!r} was trained on "
            f"{train.path!r}, whose 'train' had {train.digest}; give that DATA"
        )
    return int(begun.pins["devices"].digest)


def _check_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Check that RUN and DATA, wherever they are now, hold what they held when the rows in a folder were written."""
    for file in sorted(folder.glob("*.json")):
        before = read_row(file)["digests"]
        for argument, digest in digests.items():
            if before[argument] != digest:
                raise ConfigError(
                    f"{argument} is not what it was when the rows in {folder} were written; name another --out"
                )


def _check_folder(out: Path, config_2: StageTwoConfig, *, resume: bool) -> None:
    """Check that a folder is new, or that it holds a comparison with the same stage 2 and ``resume`` is set."""
    if not (out / CONFIG).exists() or (out / PINS).exists():  # only a run has pins
        if out.exists() and (not out.is_dir() or results_in(out)):
            raise ConfigError(f"--out is {str(out)!r}, which holds something else; name another folder")
        return
    n_rows = len(list(out.glob("seed_*/at_*/*.json")))
    if not resume:
        raise ConfigError(
            f"--out is {str(out)!r}, which holds an earlier comparison of {n_rows} rows; continue it with "
            "--resume, or name another folder"
        )
    if load_config(StageTwoConfig, out / CONFIG) != config_2:
        raise ConfigError(
            f"--out is {str(out)!r}, which holds a comparison with another configuration of stage 2; name another "
            "folder"
        )
    _log.info(f"{n_rows} rows of an earlier call are kept")
