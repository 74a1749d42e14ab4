"""Stage 2's configuration as the difference from stage 1's: what it takes over, and which recipe it is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dimred.config.base import Strict
from dimred.config.files import config_file, load_config
from dimred.config.stages import StageConfig, StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError

PARTS_OF_STEP = ("accumulation", "precision", "loss_scale", "clipping", "ema")
# Stage 2 takes these over from stage 1, sections key by key. What a host needs before the ranks join stays its own.
_TAKEN_OVER = (
    "model", "data", "loss", "metric", "label_smoothing", *PARTS_OF_STEP, "reestimate_batch_norm", "reestimate_batches",
)  # fmt: skip
_OF_HOST = ("data.workers",)


def following_stage_2(one: StageOneConfig) -> Path | None:
    """Find the file of the stage 2 that follows a stage 1: the recipe that its configuration names as ``stage_2``.

    Returns:
        The file; None if no recipe is named. Then stage 2 has the defaults, a cooldown.

    Raises:
        ConfigError: there is no such recipe.
    """
    return None if one.stage_2 is None else config_file(StageTwoConfig, Path(one.stage_2), "stage_2")


def stage_2_after(one: StageOneConfig) -> StageTwoConfig:
    """Load the stage 2 that follows a stage 1, see ``following_stage_2``, and return its whole configuration.

    Raises:
        ConfigError: there is none, it can't be read, or its keys do not go together with stage 1's.
    """
    file = following_stage_2(one)
    try:
        return complete(load_config(StageTwoConfig, file), one)
    except ConfigError as error:
        raise ConfigError(f"stage_2 is {one.stage_2!r}, which can't follow this stage 1: {error}") from None


def keys_taken_over(two: StageConfig) -> list[str]:
    """List the dotted keys that stage 2 takes over from stage 1, because its own configuration does not set them.

    These are model, data, loss, metric and label_smoothing, the parts of the step, and how BatchNorm is re-estimated.
    Of a section that stage 2 sets in part, the other keys are among them.
    """
    keys = []
    for key in _TAKEN_OVER:
        section = getattr(two, key)
        if isinstance(section, Strict):
            keys += [f"{key}.{name}" for name in type(section).model_fields if name not in section.model_fields_set]
        elif key not in two.model_fields_set:
            keys.append(key)
    return [key for key in keys if key not in _OF_HOST]


def complete(two: StageTwoConfig, one: StageOneConfig) -> StageTwoConfig:
    """Return stage 2's whole configuration: its own keys, and stage 1's value of each in ``keys_taken_over``.

    Args:
        two: stage 2's own configuration; a key that is set there stays.
        one: stage 1's.

    Raises:
        ConfigError: the keys of both do not go together; the message names all of them.
    """
    of_stage_1, values = one.model_dump(mode="json"), two.model_dump(mode="json", exclude_unset=True)
    for key in keys_taken_over(two):
        section, _, name = key.rpartition(".")
        source, target = (of_stage_1[section], values.setdefault(section, {})) if section else (of_stage_1, values)
        target[name] = source[name]
    return StageTwoConfig.checked(values)


def difference_in_words(two: StageTwoConfig, whole: StageTwoConfig) -> str:
    """Name the keys, with their values, in which a whole configuration differs from stage 2's own."""
    then, now = (dict(_values(one.model_dump(mode="json"))) for one in (two, whole))
    return ", ".join(f"{key} {value}" for key, value in now.items() if then.get(key) != value) or "nothing but defaults"


def _values(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
