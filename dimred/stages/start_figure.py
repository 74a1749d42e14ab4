"""Say what stage 2 starts from, and warn if these weights gave another figure in stage 1."""

import logging
from contextlib import suppress
from typing import Any

from dimred.config import StageTwoConfig
from dimred.errors import RunError
from dimred.io.metric import AS_TRAINED, Figures
from dimred.io.metrics_file import read_metrics
from dimred.io.run_names import METRICS
from dimred.runs.run import Run
from dimred.stages.parent import StageOneRun

_log = logging.getLogger(__name__)

_FRACTION = 0.01  # of a value, that another precision or processor may change; of a metric's samples, too
_N_SAMPLES = 2  # on which rounding alone may decide


def say_start(run: Run[StageTwoConfig], parent: StageOneRun) -> None:
    """Log the figures at the start, and warn if stage 1 recorded others for the same weights on the same split.

    Nothing else notices a network whose code has changed under the same name, if its parameters have not.

    Args:
        run: the run of stage 2, which has measured its start.
        parent: the run of stage 1 that WEIGHTS come from.
    """
    settings, figures = run.settings, run.figures
    _log.info(f"stage 2 starts from WEIGHTS: {figures.metrics[0].name} {figures.text(2)}")
    if not run.ranks.is_rank_zero or not run.is_kept:  # a trial measures few samples
        return
    n_samples = run.task.images[settings.data.eval_split].n_images
    before = _recorded(parent, settings)
    same_precision = parent.config is not None and parent.config.precision == settings.precision
    causes = "the network's code, the data," if same_precision else "the precision, the network's code, the data,"
    for metric in figures.metrics:
        was, now = (values.get(metric.name, {}).get(AS_TRAINED) for values in (before, figures.values))
        if was is None or now is None:
            continue
        rounding = max(_FRACTION, _N_SAMPLES / n_samples) if metric.is_fraction else _FRACTION * max(abs(was), abs(now))
        if not abs(now - was) <= rounding:
            _log.warning(
                f"{parent.title} gives {metric.name} {metric.text(now)} on {settings.data.eval_split!r} before the "
                f"first step of stage 2, but gave {metric.text(was)} in stage 1, as {METRICS} there says for epoch "
                f"{parent.epoch}: {causes} or the versions in versions.json have changed. Find out which before you "
                "trust what follows"
            )


def _recorded(parent: StageOneRun, settings: StageTwoConfig) -> Figures:
    """Return what stage 1 measured of WEIGHTS as stage 2 measures them; nothing if that is not known."""
    one = parent.config
    if one is None or (one.data.eval_split, one.metric) != (settings.data.eval_split, settings.metric):
        return {}
    if one.data.image_size != settings.data.image_size:  # which the user has allowed to differ
        return {}
    records: list[dict[str, Any]] = []
    with suppress(RunError):  # they are gone, or damaged, which does not matter to stage 2
        records = read_metrics(parent.config_file.with_name(METRICS))
    found = [record["metrics"] for record in records if record.get("epoch") == parent.epoch and "metrics" in record]
    return found[-1] if found else {}
