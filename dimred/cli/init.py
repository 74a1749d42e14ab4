"""``dimred init``: a configuration to start from, every key with its meaning."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dimred.errors import ConfigError

_WIDTH = 110
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def init(
    stage: Annotated[int, typer.Argument(metavar="STAGE", min=1, max=2, help="1 or 2.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The YAML file to write; an existing one is kept.")],
) -> None:
    """Write a configuration file: every key, its meaning, the values allowed, and its default.

    Example: dimred init 1 stage_1.yaml
    """
    from dimred.config import StageOneConfig, StageTwoConfig
    from dimred.files.atomic import atomic_write

    if out.exists():
        raise ConfigError(f"FILE is {str(out)!r}, which exists already; name another file")
    if not out.parent.is_dir():
        raise ConfigError(f"FILE is {str(out)!r}, but there is no folder {str(out.parent)!r}; make it first")
    atomic_write(out, commented_configuration(StageOneConfig if stage == 1 else StageTwoConfig, stage))
    print(f"{out}: every key of stage {stage} with its default; use it with --config {out}")


def commented_configuration(model: Any, stage: int) -> str:
    """YAML text that reads back to the defaults of ``model``, a pydantic model, with a comment above each key."""
    schema = model.model_json_schema()
    head = f"# Stage {stage} of dimred. Every key may be left out: the values below are the defaults.\n"
    return head + "\n".join(_lines(schema, schema["$defs"], model().model_dump(mode="json"), 0)) + "\n"


def _lines(schema: dict[str, Any], shared: dict[str, Any], values: dict[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in schema["properties"].items():
        section, is_optional = _section(field, shared)
        meaning = field.get("description") or (section or {}).get("description", "")
        text = " ".join(part for part in (meaning, _allowed(field)) if part)
        yield ""
        yield from textwrap.wrap(
            text.replace("``", ""), _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        if section is None:
            yield f"{indent}{name}: {_plain_yaml(values[name])}"
        elif is_optional and values[name] is None:
            yield f"{indent}{name}: null"
            for key, part in section["properties"].items():
                yield f"{indent}#   {key}: {part.get('description', '')}"
        else:
            yield f"{indent}{name}:"
            yield from _lines(section, shared, values[name], depth + 1)


def _section(field: dict[str, Any], shared: dict[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The keys below this one, if it has any; whether it may be null."""
    parts = [field, *field.get("allOf", []), *field.get("anyOf", [])]
    for part in parts:
        if "$ref" in part:
            return shared[part["$ref"].rsplit("/", 1)[1]], any(other.get("type") == "null" for other in parts)
    return None, False


def _allowed(field: dict[str, Any]) -> str:
    """The values a key may have, in brackets; empty where its type says all."""
    parts = field.get("anyOf", [field])
    words: list[str] = []
    for part in parts:
        if "const" in part or "enum" in part:
            words += [str(value) for value in part.get("enum", [part.get("const")])]
        elif limits := [f"{sign} {_plain_yaml(part[key])}" for key, sign in _LIMITS.items() if key in part]:
            words.append(" and ".join(limits))
        elif part.get("type") == "null":
            words.append("null")
    return f"[{', '.join(words)}]" if words and words != ["null"] else ""


def _plain_yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()
