"""Load a configuration from a YAML file and overrides, and write it back."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dimred.config.search import N_COMPONENTS_NAMES
from dimred.config.stages import StageConfig, StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError

Stage = TypeVar("Stage", bound=StageConfig)
_STAGES: dict[type[StageConfig], int] = {StageOneConfig: 1, StageTwoConfig: 2}
_ONE, _TWO = ({*stage.model_fields} for stage in _STAGES)
_OWN_KEYS: dict[type[StageConfig], set[str]] = {StageOneConfig: _ONE - _TWO, StageTwoConfig: _TWO - _ONE}
_RECIPES = Path(__file__).parents[1] / "pipelines" / "configs"
_LARGEST_FILE = 100_000
_OF_RUN = "config.yaml"  # as runs call their own
_OF_ANOTHER_VERSION = "if by another version of dimred, use that one, or remove from the file what this one lacks"


def load_config(stage: type[Stage], path: Path | None, overrides: Sequence[str] = ()) -> Stage:
    """Load a stage's configuration: read the file, apply each ``key=value`` override, and check the result as a whole.

    Args:
        stage: ``StageOneConfig`` or ``StageTwoConfig``.
        path: a YAML file; or the name of a recipe of ``pipelines/configs``, such as ``digits``; None for an empty file.
        overrides: such as ``search.rho=0.5`` or ``data.batch_size=64``; the value is read as YAML.

    Returns:
        The configuration, checked; keys that are set nowhere have their defaults.

    Raises:
        ConfigError: the file can't be read, a key is unknown or its value not allowed (the message names all of them),
            or the file or a key belongs to the other stage.
    """
    values: dict[str, Any] = {}
    if path is not None:
        path = config_file(stage, path)
        values = _read(path)
    stage_of_file = _stage_of(values)
    if stage_of_file is not None and stage_of_file is not stage:
        other = f"a configuration of stage {_STAGES[stage_of_file]}"
        raise ConfigError(f"--config is {str(path)!r}, {other}; give one of stage {_STAGES[stage]}")
    return _checked(stage, path, values, overrides)


def load_any_config(path: Path, overrides: Sequence[str] = ()) -> StageConfig:
    """Load a configuration of either stage; one that could belong to either is taken as stage 2's.

    Args:
        path: a YAML file, or the name of a recipe, whose stage 1 is taken.
        overrides: as in ``load_config``.

    Raises:
        ConfigError: as ``load_config``.
    """
    path = config_file(StageOneConfig, path)
    values = _read(path)
    return _checked(_stage_of(values) or StageTwoConfig, path, values, overrides)


def _checked(stage: type[Stage], path: Path | None, values: dict[str, Any], overrides: Sequence[str]) -> Stage:
    """Apply overrides to the values in a file, and check the result; the error names the file if that is wrong."""
    of_file = deepcopy(values)
    _override(stage, values, overrides)
    try:
        return stage.checked(values)
    except ConfigError as error:
        if path is None or _is_right(stage, of_file):
            raise
        by_a_run = f", which a run has stored; {_OF_ANOTHER_VERSION}" if path.name == _OF_RUN else ""
        raise ConfigError(f"{error}\n(in {str(path)!r}{by_a_run})") from error


def _is_right(stage: type[StageConfig], values: Mapping[str, Any]) -> bool:
    try:
        stage.checked(values)
    except ConfigError:
        return False
    return True


def _override(stage: type[StageConfig], values: dict[str, Any], overrides: Sequence[str]) -> None:
    overrides = _with_the_name_of(values, overrides)
    for override in overrides:
        key = override.partition("=")[0].partition(".")[0]
        if others := [number for other, number in _STAGES.items() if key in _OWN_KEYS[other] and other is not stage]:
            new_key = getattr(stage, "NEW_KEYS", {}).get(key)
            instead = f"set {new_key}" if new_key else "leave it out here"
            raise ConfigError(f"--set is {override!r}, but {key} is a key of stage {others[0]}; {instead}")
        _apply(values, override)


def _with_the_name_of(values: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Return the overrides, in which ``search.n_components`` has the name that the file uses.

    Raises:
        ConfigError: the overrides have both names.
    """
    keys = [f"search.{name}" for name in N_COMPONENTS_NAMES]
    of_the_key = [override for override in overrides if override.partition("=")[0] in keys]
    if len({override.partition("=")[0] for override in of_the_key}) == 2:
        raise ConfigError(f"--set is {of_the_key[0]!r} and {of_the_key[1]!r}, but the two are one key; leave one out")
    search = values.get("search")
    in_file = [key for key, name in zip(keys, N_COMPONENTS_NAMES, strict=True) if name in (search or ())]
    if len(in_file) != 1:
        return list(overrides)
    return [f"{in_file[0]}={one.partition('=')[2]}" if one in of_the_key else one for one in overrides]


def _read(path: Path) -> dict[str, Any]:
    """Read the keys and values in a file."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            problem = f"has more than {_LARGEST_FILE:,} bytes; name a YAML file"
            raise ConfigError(f"--config is {str(path)!r}, which {problem}")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8 text"
        raise ConfigError(
            f"--config is {str(path)!r}, which can't be read ({why}); name a YAML file or a recipe"
        ) from error
    values = _parse(text, f"--config {str(path)!r}")
    if values is not None and not isinstance(values, dict):
        raise ConfigError(f"--config {str(path)!r} holds no keys; expected lines such as 'epochs: 70'")
    return values or {}


def _stage_of(values: Mapping[str, Any]) -> type[StageConfig] | None:
    """Return the stage that these keys belong to; None if no key decides it, or there are keys of both."""
    stages = [stage for stage in _STAGES if _OWN_KEYS[stage] & values.keys()]
    return stages[0] if len(stages) == 1 else None


def config_file(stage: type[StageConfig], path: Path, argument: str = "--config") -> Path:
    """Find the file that ``path`` stands for: the file itself, or this stage's file of the recipe with that name.

    The name of a task alone, such as ``digits``, stands for its recipe without a horizon, ``digits_anytime``, in which
    stage 1 has a constant rate and may end after any epoch.

    Args:
        stage: ``StageOneConfig`` or ``StageTwoConfig``.
        path: the file, or the name. What has a suffix is taken for a file, whether it exists or not.
        argument: what the user calls it, for errors.

    Raises:
        ConfigError: there is no such recipe.
    """
    if path.suffix or path.is_file():
        return path
    suffix = f"_{_STAGES[stage]}.yaml"
    for kind in ("", "_anytime"):
        if (recipe := _RECIPES / f"{path}{kind}{suffix}").exists():
            return recipe
    there = sorted(path.name.removesuffix(suffix).removesuffix("_anytime") for path in _RECIPES.glob(f"*{suffix}"))
    raise ConfigError(
        f"{argument} is {str(path)!r}, which is not a file; give a YAML file, or a recipe: {', '.join(there)}"
    )


def config_text(config: StageConfig, *, only_set: bool = False) -> str:
    """Return the configuration as YAML text, from which ``load_config`` makes an equal one.

    Args:
        config: the configuration.
        only_set: whether to leave out the keys that are not set, which a stage 2 may take over from stage 1.
    """
    return str(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=only_set), sort_keys=False))


# What PyYAML's constructors raise for values such as ``!!int ""``, ``!!bool x``, ``!!timestamp x``.
_CONSTRUCTOR_ERRORS = (ValueError, OverflowError, LookupError, AttributeError, TypeError, RecursionError)


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key that is there twice, and reads numbers as they look.

    YAML's own would drop the first of two keys, read 010 as the octal number 8, and 1:10 as 70, to the base 60.
    """

    def compose_mapping_node(self, anchor: str | None) -> Any:
        """Compose a mapping as it is written, without the keys that ``<<`` will add."""
        node, keys = super().compose_mapping_node(anchor), set[str]()
        for key, _ in node.value:
            if str(key.value) in keys:
                raise yaml.constructor.ConstructorError(problem=f"the key {key.value!r} is there twice{key.start_mark}")
            keys.add(str(key.value))
        return node

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Construct a number, a decimal one also after zeros; what has a colon stays a text."""
        text = str(self.construct_scalar(node))
        if ":" in text:
            return text
        if re.fullmatch(r"[-+]?0[\d_]+", text):
            return int(text.replace("_", ""))
        return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def _parse(text: str, source: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, *_CONSTRUCTOR_ERRORS) as error:
        where = " ".join(str(error).split())[:200]
        raise ConfigError(f"{source} is not valid YAML: {where}") from error


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set is {override!r}; expected key=value, such as epochs=2 or data.batch_size=64")
    *parents, name = key.split(".")
    for parent in parents:
        values[parent] = {} if values.get(parent) is None else values[parent]  # null stands for a section that is off
        if parent == "stop" and isinstance(values[parent], str):  # a name alone may stand for the section
            values[parent] = {"name": values[parent]}
        values = values[parent]
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override!r}: {parent!r} is a value and has no keys below it")
    values[name] = _parse(text, f"--set {key}")
