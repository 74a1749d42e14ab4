"""``dimred init`` writes a configuration file that explains its keys."""

import json
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dimred.console import check_new_file

_WIDTH = 110
_HEAD = """\
# A run of both stages. They share the keys at the top level; a stage's own section may give a key another value. A key
# that is left out has its default.
"""
_FIRST = {
    "": [
        "model.name",
        "model.n_classes",
        "data.dataset",
        "data.image_size",
        "data.batch_size",
        "data.augmentation",
        "data.mean",
        "data.std",
        "data.eval_split",
        "loss",
        "metric",
        "precision.level",
    ],
    "stage_1": [
        "epochs",
        "schedule.name",
        "schedule.peak",
        "schedule.warmup_epochs",
        "schedule.total_epochs",
        "optimizer.name",
        "optimizer.weight_decay",
        "snapshots.first_epoch",
        "snapshots.keep",
    ],
    "stage_2": ["method", "epochs"],
}
"""The keys that a user sets first, by section; each stage 2 method has its own (``MethodConfig.first_keys``)."""
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def init(
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="The YAML file to write; must not exist.", callback=check_new_file)
    ] = Path("dimred.yaml"),
    config: Annotated[
        Path | None,
        typer.Option(help="A recipe, such as digits, or a YAML file; its values are written in place of the defaults."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Write every key, not only those to set first.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Write the configuration's JSON Schema instead, for editors.")
    ] = False,
) -> None:
    """Write a configuration file of both stages: the keys to set first, each with its meaning and default.

    The defaults are the published recipe's. In the recipes imagenet_cooldown and digits_cooldown, stage 1 has no
    horizon: it need not know in advance how long it will train.

    An editor that knows the schema completes keys and marks mistakes. For the YAML language server, begin the
    YAML file with: # yaml-language-server: $schema=dimred.json

    Example: dimred init my_run.yaml --config digits

    Example: dimred init dimred.json --schema
    """
    from dimred.config import StageOneConfig, load_config
    from dimred.io.atomic import atomic_write

    if schema:
        atomic_write(out, json.dumps(configuration_schema(), indent=2) + "\n")
        print(f"{out}: the JSON Schema of a configuration file")
        return
    loaded = load_config(StageOneConfig, config)
    atomic_write(out, commented_configuration(loaded, every=every))
    keys = "every key" if every else "the keys to set first (--all writes every key)"
    print(f"{out}: {keys}, with their meanings; use it with dimred train stage-1 DATA --config {out}")


def configuration_schema() -> dict[str, Any]:
    """Return the JSON Schema for a configuration file; it also allows the other name of ``n_components``."""
    from dimred.config import N_COMPONENTS_NAMES, StageConfig, StageOneConfig, StageTwoConfig

    schema: dict[str, Any] = StageConfig.model_json_schema()
    for name, model in (("stage_1", StageOneConfig), ("stage_2", StageTwoConfig)):
        stage: dict[str, Any] = model.model_json_schema()
        schema["$defs"] |= stage.pop("$defs")
        stage["properties"].pop("stage_2", None)
        schema["properties"][name] = stage
    name, other_name = N_COMPONENTS_NAMES
    for section in schema["$defs"].values():
        keys = section.get("properties", {})
        if name in keys:
            keys[other_name] = keys[name] | {"description": f"The same as {name}."}
            section["not"] = {"required": [name, other_name]}
    return schema


def commented_configuration(config_1: Any, *, every: bool = False) -> str:
    """Return YAML text with a comment above each key; it reads back as the same configuration for both stages.

    Args:
        config_1: stage 1's configuration, with the section ``stage_2``.
        every: whether to write every key, and not only those to set first and those that differ from their default.
    """
    from dimred.config import StageConfig, flatten

    config_2 = config_1.following
    lines = list[str]()
    of_shared = {key: value for key, value in config_1.stage_2.items() if key in StageConfig.model_fields}
    first = dict(_FIRST)
    first["stage_2"] = [
        *first["stage_2"],
        *(f"{config_2.method_name}.{key}" for key in config_2.method_config.first_keys),
    ]
    default_1 = type(config_1)()
    default_2 = type(config_2)(method=config_2.method)
    parts = (("", config_1, default_1), ("stage_1", config_1, default_1), ("stage_2", config_2, default_2))
    for section, config, default in parts:
        values, defaults = (part.model_dump(mode="json", exclude={"stage_2"}) for part in (config, default))
        if config is config_2:
            values |= dict.fromkeys(config_2.methods().keys() - {config_2.method_name})
        flat = flatten(values)
        flat_defaults = flatten(defaults)
        chosen = {
            key
            for key, value in flat.items()
            if (key.partition(".")[0] in StageConfig.model_fields) == (section == "")
            and (every or key in first[section] or value != flat_defaults.get(key))
        }
        if config is config_2:
            chosen |= flatten(of_shared).keys()
        schema = type(config).model_json_schema()
        lines += ["", f"{section}:"] if section else []
        lines += _lines(schema, schema["$defs"], values, defaults, chosen, indent="  " if section else "")
    return _HEAD + "\n".join(lines) + "\n"


def _lines(
    schema: dict[str, Any],
    sections: dict[str, Any],
    values: dict[str, Any],
    defaults: dict[str, Any],
    chosen: Collection[str],
    indent: str = "",
    prefix: str = "",
) -> Iterator[str]:
    """Yield a section's lines, for the dotted keys in ``chosen``."""
    for name, field in schema["properties"].items():
        key = prefix + name
        if not any(chosen_key == key or chosen_key.startswith(f"{key}.") for chosen_key in chosen):
            continue
        types = field.get("anyOf", [field])
        section = next((sections[part["$ref"].rsplit("/", 1)[1]] for part in types if "$ref" in part), None)
        meaning = field.get("description") or (section or {}).get("description", "")
        text = f"{meaning} {_allowed(types)}".replace("``", "").strip()
        if values[name] != defaults[name] and section is None:
            text += f" (default: {_plain_yaml(defaults[name])})"
        yield ""
        yield from textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        if section is None:
            yield f"{indent}{name}: {_plain_yaml(values[name])}"
        elif values[name] is None:
            is_left_out = defaults[name] is not None
            yield f"{indent}# {name}:" if is_left_out else f"{indent}{name}: null"
            for inner, part in section["properties"].items():
                yield f"{indent}#   {inner}: {' '.join(part.get('description', '').split())}"
        else:
            yield f"{indent}{name}:"
            of_default = defaults[name] or values[name]
            yield from _lines(section, sections, values[name], of_default, chosen, f"{indent}  ", f"{key}.")


def _allowed(types: list[dict[str, Any]]) -> str:
    """Return a key's allowed values or range, in brackets; empty if its type says enough."""
    words: list[str] = []
    for part in types:
        if "const" in part or "enum" in part:
            words += [str(value) for value in part.get("enum", [part.get("const")])]
        elif limits := [f"{sign} {_plain_yaml(part[key])}" for key, sign in _LIMITS.items() if key in part]:
            words.append(" and ".join(limits))
        elif part.get("type") == "null":
            words.append("null")
    return f"[{', '.join(words)}]" if words and words != ["null"] else ""


def _plain_yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, default_flow_style=True, width=10_000)).removesuffix("...\n").strip()
