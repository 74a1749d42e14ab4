"""``dimred init`` writes a configuration file that explains every key; ``dimred data`` makes or checks a data set."""

import json
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dimred.console import check_new_file
from dimred.errors import ConfigError

_WIDTH = 110
_HEADS = (
    "# Stage 1 of dimred. A key that is left out has its default: the one here if no other is named.\n",
    "# Stage 2 of dimred: by default a cooldown, in which stage 1's training goes on while its rate falls to 0. A key\n"
    "# with # in front and no blank behind, such as #label_smoothing, is taken over from stage 1. To set another\n"
    "# value, take that # away, and that of its section's name. If WEIGHTS are not in a run of dimred's, the default\n"
    "# of such a key holds, as of any that is left out: the one here if no other is named.\n",
)
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def init(
    stage: Annotated[
        Literal["stage-1", "stage-2", "1", "2"],
        typer.Argument(metavar="STAGE", help="stage-1 or stage-2; the number alone will do."),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="The YAML file to write; must not exist.", callback=check_new_file)
    ],
    config: Annotated[
        Path | None,
        typer.Option(help="A recipe, such as digits, or a YAML file whose values to write in place of the defaults."),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Write the configuration's JSON Schema instead, for editors.")
    ] = False,
) -> None:
    """Write a configuration file: every key, its meaning, the values allowed, and its default.

    Stage 2's file is a difference from stage 1's: a key that it takes over from there has # in front.

    Stage 1's defaults are those of the published recipe; stage 2's are those that measured best. In the recipes digits
    and imagenet, stage 1 has no horizon: it need not know in advance how long it will train.

    An editor that knows the schema completes keys and marks mistakes. For the YAML language server, begin the
    YAML file with: # yaml-language-server: $schema=stage_1.json

    Example: dimred init stage-1 stage_1.yaml --config imagenet

    Example: dimred init stage-1 stage_1.json --schema
    """
    from dimred.config import StageOneConfig, StageTwoConfig, config_file, load_config
    from dimred.io.atomic import atomic_write

    number = int(stage[-1])
    model = StageOneConfig if number == 1 else StageTwoConfig
    if schema:
        if config is not None:
            raise ConfigError("--schema and --config exclude each other: the schema is the same for every recipe")
        atomic_write(out, json.dumps(configuration_schema(model), indent=2) + "\n")
        print(f"{out}: the JSON Schema of stage {number}'s configuration")
        return
    values = load_config(model, config_file(model, config)) if config else model()
    atomic_write(out, commented_configuration(values))
    note = "; those with # in front are stage 1's" if number == 2 else ""
    print(f"{out}: every key of stage {number} with its meaning{note}; use it with --config {out}")


def configuration_schema(model: Any) -> dict[str, Any]:
    """Return the JSON Schema of what a stage's configuration file may have, with the other name of ``n_components``.

    Args:
        model: ``StageOneConfig`` or ``StageTwoConfig``.
    """
    from dimred.config import N_COMPONENTS_NAMES

    schema: dict[str, Any] = model.model_json_schema()
    name, other_name = N_COMPONENTS_NAMES
    for section in schema["$defs"].values():
        if name in (keys := section.get("properties", {})):
            keys[other_name] = keys[name] | {"description": f"The same as {name}."}
            section["not"] = {"required": [name, other_name]}
    return schema


def commented_configuration(config: Any) -> str:
    """Return YAML text that reads back to ``config``, a pydantic model, with a comment above each key.

    A key that a stage 2 takes over from stage 1 is a comment too, with ``#`` in front and no blank behind.
    """
    from dimred.config import StageTwoConfig, keys_taken_over

    schema, defaults = type(config).model_json_schema(), type(config)().model_dump(mode="json")
    is_stage_2 = isinstance(config, StageTwoConfig)
    taken = keys_taken_over(config) if is_stage_2 else []
    lines = _lines(schema, schema["$defs"], config.model_dump(mode="json"), defaults, taken)
    return _HEADS[is_stage_2] + "\n".join(lines) + "\n"


def _lines(
    schema: dict[str, Any], sections: dict[str, Any], values: dict[str, Any], defaults: dict[str, Any],
    taken: Collection[str], indent: str = "", prefix: str = "",
) -> Iterator[str]:  # fmt: skip
    for name, field in schema["properties"].items():
        types = field.get("anyOf", [field])
        section = next((sections[part["$ref"].rsplit("/", 1)[1]] for part in types if "$ref" in part), None)
        meaning = field.get("description") or (section or {}).get("description", "")
        text = f"{meaning} {_allowed(types)}".replace("``", "").strip()
        if values[name] != defaults[name] and not (section and defaults[name]):
            text += f" (default: {_plain_yaml(defaults[name])})"
        yield ""
        yield from textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        key = prefix + name
        is_taken = key in taken or (section and all(f"{key}.{inner}" in taken for inner in section["properties"]))
        start = f"{indent}#" if is_taken else indent
        if section is None:
            yield f"{start}{name}: {_plain_yaml(values[name])}"
        elif values[name] is None:
            yield f"{start}{name}: null"
            for inner, part in section["properties"].items():
                yield f"{indent}#   {inner}: {' '.join(part.get('description', '').split())}"
        else:
            yield f"{start}{name}:"
            of_key = () if is_taken else taken
            yield from _lines(
                section, sections, values[name], defaults[name] or values[name], of_key, f"{start}  ", f"{key}."
            )


def _allowed(types: list[dict[str, Any]]) -> str:
    """Return the allowed values or range of a key, in brackets; empty if its type says enough."""
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


data = typer.Typer(help="Make a data set that needs no download, or check the images of any.", no_args_is_help=True)


@data.command()
def digits(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder; gets train/, val/ and test/.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 1,
    label_noise: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of the training images put into a random class.")
    ] = 0.0,
) -> None:
    """Write handwritten digits, shifted and noisy: 10 classes of 16 x 16 PNG files.

    Example: dimred data digits ./digits --seed 1
    """
    from dimred.data.image_tree import write_digits

    counts = write_digits(out, seed, label_noise=label_noise)
    print(f"{out}: " + ", ".join(f"{count} {split} images" for split, count in counts.items()))


@data.command()
def check(
    root: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with images in it, at any depth.", exists=True)],
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode.")] = 8,
) -> None:
    """Decode every image; count grey, CMYK and damaged ones, and list the damaged. Exit status 1 if any is damaged.

    Hidden files and folders are left out, as in training. Images of formats that training does not read are counted.

    Example: dimred data check ./imagenet
    """
    from dimred.data.image_tree import IMAGE_SUFFIXES, check_images, count_in_words

    kinds, not_read = check_images(root, workers)
    bad_paths = [path for path, kind in kinds.items() if kind == "damaged"]
    for path in bad_paths:
        print(path)
    print(", ".join(f"{number} {kind}" for kind, number in sorted(Counter(kinds.values()).items())))
    if not_read:
        print(f"passed over, because training reads only {', '.join(IMAGE_SUFFIXES)}: {count_in_words(not_read)}")
    raise typer.Exit(1 if bad_paths else 0)
