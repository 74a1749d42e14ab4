"""``dimred init``: a configuration to start from, every key with its meaning."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dimred.console import check_new_file

_WIDTH = 110
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def init(
    stage: Annotated[int, typer.Argument(metavar="STAGE", min=1, max=2, help="1 or 2.")],
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="The YAML file to write; must not exist.", callback=check_new_file)
    ],
) -> None:
    """Write a configuration file: every key, its meaning, the values allowed, and its default.

    Example: dimred init 1 stage_1.yaml
    """
    from dimred.config import StageOneConfig, StageTwoConfig
    from dimred.files.atomic import atomic_write

    atomic_write(out, commented_configuration(StageOneConfig if stage == 1 else StageTwoConfig, stage))
    print(f"{out}: every key of stage {stage} with its default; use it with --config {out}")


def commented_configuration(model: Any, stage: int) -> str:
    """YAML text that reads back to the defaults of ``model``, a pydantic model, with a comment above each key."""
    schema = model.model_json_schema()
    head = f"# Stage {stage} of dimred. Every key may be left out: the values below are the defaults.\n"
    return head + "\n".join(_lines(schema, schema["$defs"], model().model_dump(mode="json"), "")) + "\n"


def _lines(schema: dict[str, Any], sections: dict[str, Any], values: dict[str, Any], indent: str) -> Iterator[str]:
    for name, field in schema["properties"].items():
        types = field.get("anyOf", [field])
        section = next((sections[part["$ref"].rsplit("/", 1)[1]] for part in types if "$ref" in part), None)
        meaning = field.get("description") or (section or {}).get("description", "")
        text = f"{meaning} {_allowed(types)}".replace("``", "").strip()
        yield ""
        yield from textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        if section is None:
            yield f"{indent}{name}: {_plain_yaml(values[name])}"
        elif values[name] is None:
            yield f"{indent}{name}: null"
            yield from (
                f"{indent}#   {key}: {part.get('description', '')}" for key, part in section["properties"].items()
            )
        else:
            yield f"{indent}{name}:"
            yield from _lines(section, sections, values[name], indent + "  ")


def _allowed(types: list[dict[str, Any]]) -> str:
    """The values that a key of these types may have, in brackets; empty where its type says all."""
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
