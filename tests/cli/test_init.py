"""``dimred init`` writes a configuration that explains every key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dimred.cli.init import commented_configuration, configuration_schema
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig, config_file, config_text, load_config
from dimred.errors import ConfigError
from tests.helpers.commands import CONFIGS, dimred_here

STAGES = pytest.mark.parametrize(("stage", "model"), [("1", StageOneConfig), ("stage-2", StageTwoConfig)])


@STAGES
@pytest.mark.parametrize("recipe", [None, "digits"])
def test_it_reads_back_to_the_defaults_or_to_a_recipe_and_names_other_defaults(
    stage: str, model: type[StageConfig], recipe: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "made.yaml"
    dimred_here("init", stage, file, *(["--config", recipe] if recipe else []), status=0)
    assert load_config(model, file) == (load_config(model, config_file(model, Path(recipe))) if recipe else model())
    if recipe:
        lines = {
            "1": "# [averaged, null] (default: null)\nstop:\n\n  # ",
            "2": f"(default: {StageTwoConfig().data.workers})\n  workers: 1\n",
        }
        assert lines[stage[-1]] in file.read_text()
        assert file.read_text().count("(default: ") < 20


@pytest.mark.parametrize("model", [StageOneConfig, StageTwoConfig])
def test_every_key_has_its_meaning_above_it(model: type[StageConfig]) -> None:
    lines = commented_configuration(model(), 1).splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r" *\w+:", line)]
    assert len(keys) > 20
    for number in keys:
        assert re.match(r" *# \S+", lines[number - 1]), f"{lines[number]!r} has no docstring below it in config.py"


def test_values_and_ranges_allowed_are_named() -> None:
    text = re.sub(r"(?<=[\w,])\n# (?=\w)", " ", commented_configuration(StageTwoConfig(), 2))
    assert re.search(r"# .*\[linear, cosine, 1-sqrt\]\n  schedule: linear\n", text)
    assert re.search(r"# .*\[>= 0 and < 1\]\nlabel_smoothing: 0.1\n", text)
    assert re.search(r"\nsearch: null\n#   rule: bfgs: .*\n", text)


def in_schema(values: Any, model: type[StageConfig]) -> bool:
    """Return whether the schema allows what YAML files and ``--set`` made of these values."""
    jsonschema = pytest.importorskip("jsonschema")
    plain = json.loads(json.dumps(values))
    return jsonschema.Draft202012Validator(configuration_schema(model)).is_valid(plain)


def test_an_editor_marks_no_shipped_recipe() -> None:
    recipes = sorted(CONFIGS.glob("*.yaml"))
    assert len(recipes) == 8
    for recipe in recipes:
        model = StageOneConfig if recipe.stem.endswith("_1") else StageTwoConfig
        assert in_schema(yaml.safe_load(recipe.read_text()), model), recipe.name
        assert in_schema(yaml.safe_load(config_text(load_config(model, recipe))), model), recipe.name


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (StageOneConfig, {"stop": "averaged"}),
        (StageOneConfig, {"stop": None}),
        (StageOneConfig, {"stop": {"patience": 2}}),
        (StageTwoConfig, {"search": {"n_component": 8}}),
        (StageTwoConfig, {"search": None, "cooldown": {"factor": 1}}),
        (StageTwoConfig, {"epochs": "10%"}),
        (StageTwoConfig, {"epochs": 2, "start": "other.ckpt"}),
    ],
)
def test_an_editor_accepts_what_dimred_accepts(model: type[StageConfig], values: dict[str, Any]) -> None:
    model.checked(values)
    assert in_schema(values, model)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (StageOneConfig, {"stop": "val"}),
        (StageOneConfig, {"epoch": 3}),
        (StageTwoConfig, {"search": {"n_component": 0}}),
        (StageTwoConfig, {"search": {"n_component": 8, "n_components": 8}}),
    ],
)
def test_an_editor_marks_what_dimred_refuses(model: type[StageConfig], values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        model.checked(values)
    assert not in_schema(values, model)


@STAGES
def test_the_schema_knows_every_key_and_no_other(stage: str, model: type[StageConfig], tmp_path: Path) -> None:
    """An editor reads this schema and marks keys that are not in it."""
    file = tmp_path / "schema.json"
    dimred_here("init", stage, file, "--schema", status=0)
    schema = json.loads(file.read_text())
    assert set(schema["properties"]) == set(model.model_fields)
    for section in (schema, *schema["$defs"].values()):
        if "properties" in section:
            assert section["additionalProperties"] is False
            assert all("description" in key or "$ref" in str(key) for key in section["properties"].values())
