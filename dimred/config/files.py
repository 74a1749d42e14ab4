"""Load a stage's configuration from a YAML file with both stages and from ``--set``, and write it back."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dimred.config.messages import keys_of, lines_of_unknown
from dimred.config.search import N_COMPONENTS_NAMES
from dimred.config.stages import StageConfig, StageOneConfig, StageTwoConfig, lay_over
from dimred.errors import ConfigError, ProblemsError
from dimred.io.regular_file import open_regular

Stage = TypeVar("Stage", bound=StageConfig)
SECTIONS: dict[str, type[StageConfig]] = {"stage_1": StageOneConfig, "stage_2": StageTwoConfig}
"""Section of a file -> the model of its stage."""
_RECIPES = Path(__file__).parents[1] / "pipelines" / "configs"
_LARGEST_FILE = 100_000


def load_config(stage: type[Stage], path: Path | None, overrides: Sequence[str] = ()) -> Stage:
    """Load a stage's configuration: its section of the file overrides the shared part, and ``overrides`` override both.

    The section ``stage_2`` is for its ``method``: if an override sets another method, the section is ignored. Stage
    2's section is checked with stage 1's, so that a mistake in it is found before stage 1 trains.

    Args:
        stage: ``StageOneConfig`` or ``StageTwoConfig``; ``StageConfig`` for the shared part alone.
        path: a YAML file; or the name of a recipe of ``pipelines/configs``, such as ``digits``; None for an empty file.
        overrides: keys of the stage, such as ``search.rho=0.5`` or ``data.batch_size=64``; the value is read as YAML.

    Returns:
        The configuration, checked; keys that are set nowhere have their defaults.

    Raises:
        ConfigError: the file can't be read, or a key is unknown, misplaced, or its value not allowed; the message names
            all of them.
    """
    whole: dict[str, Any] = {}
    if path is not None:
        path = config_file(path)
        whole = _read(path)
    problems = _problems(stage, whole, overrides)
    if not problems:
        return stage.checked(_values(stage, whole, overrides))
    if path is not None and _problems(stage, whole):
        problems.append(f"(in {str(path)!r})")
    raise ProblemsError(problems)


def _problems(stage: type[StageConfig], whole: Mapping[str, Any], overrides: Sequence[str] = ()) -> list[str]:
    """List the problems of a file with overrides: misplaced keys, and what is wrong for the stage or for stage 2."""
    values = _values(stage, whole, overrides)
    problems = [*_misplaced(whole), *_problems_of(stage, values)]
    following = values.get("stage_2", {})
    if stage is StageOneConfig and isinstance(following, Mapping):
        shared = {key: value for key, value in values.items() if key in StageConfig.model_fields}
        of_stage_2 = _problems_of(StageTwoConfig, lay_over(shared, following))
        problems += [f"stage_2: {problem}" for problem in of_stage_2 if problem not in problems]
    return problems


def _problems_of(stage: type[StageConfig], values: Mapping[str, Any]) -> Sequence[str]:
    try:
        stage.checked(values)
    except ConfigError as error:
        return error.problems
    return ()


def _misplaced(whole: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about each key at the top of a file that is neither shared nor a stage's section."""
    for key, value in whole.items():
        if key in StageConfig.model_fields:
            continue
        if key in SECTIONS:
            if value is not None and not isinstance(value, Mapping):
                yield f"{key} is {value!r}; it must be a section of keys and values"
        elif sections := [section for section, stage in SECTIONS.items() if key in stage.model_fields]:
            yield f"{key} is not a shared key; move it to {' or '.join(sections)}"
        else:
            yield from lines_of_unknown(str(key), value, [*keys_of(StageConfig), *SECTIONS], StageConfig.NEW_KEYS)


def _values(stage: type[StageConfig], whole: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Lay a stage's section over the shared part, and apply the overrides."""
    shared = {key: value for key, value in whole.items() if key in StageConfig.model_fields}
    of_stage = {name: value for name, value in whole.items() if name in SECTIONS and isinstance(value, Mapping)}
    section = next((of_stage.get(name, {}) for name, of in SECTIONS.items() if of is stage), {})
    if stage is StageTwoConfig and _has_other_method(section, overrides):
        section = {}
    values = lay_over(shared, section)
    if stage is StageOneConfig and "stage_2" in of_stage:
        values["stage_2"] = dict(of_stage["stage_2"])
    _override(stage, values, overrides)
    return values


def _has_other_method(section: Mapping[str, Any], overrides: Sequence[str]) -> bool:
    """Return whether the overrides name a method other than the one the section is for."""
    pairs = [override.partition("=") for override in overrides]
    typed = [value for key, _, value in pairs if key == "method"]
    default = StageTwoConfig.model_fields["method"].default
    return bool(typed) and _parse(typed[-1], "--set method") != section.get("method", default)


def _override(stage: type[StageConfig], values: dict[str, Any], overrides: Sequence[str]) -> None:
    typed = {override.partition("=")[0] for override in overrides} & {f"search.{name}" for name in N_COMPONENTS_NAMES}
    if len(typed) > 1:
        raise ConfigError(f"--set has {' and '.join(sorted(typed))}, two names for one key; leave one out")
    for override in overrides:
        key, _, inner = override.partition("=")[0].partition(".")
        if key in SECTIONS:
            number = key.removeprefix("stage_")
            raise ConfigError(
                f"--set is {override!r}, but --set takes keys of the stage that runs, such as {inner or 'epochs'}=...; "
                f"set stage {number}'s with dimred train stage-{number}"
            )
        others = [name for name, other in SECTIONS.items() if other is not stage and key in other.model_fields]
        if others and key not in stage.model_fields:
            raise ConfigError(f"--set is {override!r}, but {key} is a key of {' and '.join(others)}; leave it out here")
        _apply(values, override)


def _read(path: Path) -> dict[str, Any]:
    """Read the keys and values in a file."""
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise ConfigError(
                f"--config is {str(path)!r}, which has more than {_LARGEST_FILE:,} bytes; name a YAML file or a recipe"
            )
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


def config_file(path: Path) -> Path:
    """Find the file that ``path`` stands for: the file itself, or the recipe with that name, such as ``digits``.

    Args:
        path: the file, or the name. A path with a suffix is taken for a file, whether it exists or not.

    Raises:
        ConfigError: there is no such recipe.
    """
    if path.suffix or path.is_file():
        return path
    recipe = _RECIPES / f"{path}.yaml"
    if recipe.exists():
        return recipe
    raise ConfigError(
        f"--config is {str(path)!r}, which is not a file; give a YAML file, or a recipe: {', '.join(recipe_names())}"
    )


def recipe_names() -> list[str]:
    """Return the names of the recipes, sorted."""
    return sorted(recipe.stem for recipe in _RECIPES.glob("*.yaml"))


def config_text(config: StageConfig) -> str:
    """Return the configuration of a stage as YAML text, from which ``load_config`` makes an equal one.

    The shared part holds the stage's own values of the shared keys. Stage 1's text keeps the section ``stage_2`` as it
    was read, so that stage 2 can be run with the same file.
    """
    values = config.model_dump(mode="json")
    whole = {key: values.pop(key) for key in StageConfig.model_fields}
    if isinstance(config, StageTwoConfig):
        for other in config.methods().keys() - {config.method_name}:
            del values[other]
        whole["stage_2"] = values
    else:
        whole |= {"stage_2": values.pop("stage_2"), "stage_1": values}
    return str(yaml.safe_dump(whole, sort_keys=False))


# What PyYAML's constructors raise for values such as ``!!int ""``, ``!!bool x``, ``!!timestamp x``.
_CONSTRUCTOR_ERRORS = (ValueError, OverflowError, LookupError, AttributeError, TypeError, RecursionError)


class _Loader(yaml.SafeLoader):
    """A loader that refuses duplicate keys, and reads numbers as they look.

    PyYAML's own would drop the first of two equal keys, and read 010 as the octal number 8, and 1:10 as 70, in base 60.
    """

    def compose_mapping_node(self, anchor: str | None) -> Any:
        """Compose a mapping, and refuse a key that is written twice; the keys that ``<<`` adds are not there yet."""
        node = super().compose_mapping_node(anchor)
        keys = set[str]()
        for key, _ in node.value:
            if str(key.value) in keys:
                raise yaml.constructor.ConstructorError(problem=f"the key {key.value!r} is given twice{key.start_mark}")
            keys.add(str(key.value))
        return node

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Construct a number. Leading zeros of a decimal number are dropped, and a text with a colon stays a text."""
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
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else loader.construct_object(node, deep=True)  # refuses a value inside itself
    except (yaml.YAMLError, *_CONSTRUCTOR_ERRORS) as error:
        where = " ".join(str(error).split())[:200]
        raise ConfigError(f"{source} is not valid YAML: {where}") from error


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set is {override!r}; expected key=value, such as epochs=2 or data.batch_size=64")
    *parents, name = key.split(".")
    for parent in parents:
        section = {} if values.get(parent) is None else values[parent]  # null stands for a section that is off
        if parent == "stop" and isinstance(section, str):  # a name alone may stand for the section
            section = {"name": section}
        if not isinstance(section, dict):
            raise ConfigError(f"--set is {override!r}, but {parent!r} is a value, and has no keys below it")
        values[parent] = dict(section)  # a copy, so that the values that were read stay as they are
        values = values[parent]
    if name in N_COMPONENTS_NAMES:  # the file may have it under its other name
        for either in N_COMPONENTS_NAMES:
            values.pop(either, None)
    values[name] = _parse(text, f"--set {key}")
