"""``dimred init`` writes a configuration that explains every key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dimred.cli.init import commented_configuration, configuration_schema
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig, config_text, load_config
from dimred.errors import ConfigError
from tests.helpers.commands import CONFIGS, dimred_here


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("recipe", [None, "digits", "imagenet_cooldown"])
def test_it_reads_back_to_the_defaults_or_to_a_recipe_and_names_other_defaults(
    recipe: str | None, every: bool, tmp_path: Path
) -> None:
    file = tmp_path / "made.yaml"
    options = [*(["--config", recipe] if recipe else []), *(["--all"] if every else [])]
    dimred_here("init", file, *options, status=0)
    for stage in (StageOneConfig, StageTwoConfig):
        made, source = load_config(stage, file), load_config(stage, recipe and Path(recipe))
        no_file = {"stage_2": {}} if stage is StageOneConfig else {}
        assert made.model_copy(update=no_file) == source.model_copy(update=no_file)
    text = file.read_text()
    if recipe == "digits":
        assert "(default: 0.8)\n    peak: 0.4\n" in text
        assert text.count("(default: ") < 20
    assert ("evaluate_every_epochs" in text) == (every or recipe == "imagenet_cooldown")
    assert text.count("\n") < (500 if every else 160)


def test_without_a_name_the_file_is_dimred_yaml_and_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dimred_here("init", status=0)
    assert load_config(StageTwoConfig, tmp_path / "dimred.yaml").method == "search"
    dimred_here("init", status=2)


@pytest.mark.parametrize("recipe", ["digits", "digits_cooldown"])
def test_every_key_has_its_meaning_above_it(recipe: str) -> None:
    lines = commented_configuration(load_config(StageOneConfig, Path(recipe)), every=True).splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r" *[a-z]\w*:( |$)", line)]
    assert len(keys) > 60
    for number in keys:
        if not re.match("stage_", lines[number]):
            assert re.match(r" *#+ +\S+", lines[number - 1]), f"{lines[number]!r} has no docstring"


def test_values_and_ranges_allowed_are_named_and_the_other_method_is_a_comment() -> None:
    text = commented_configuration(load_config(StageOneConfig, Path("digits_cooldown")), every=True)
    text = re.sub(r"(?<=[\w,])\n *# (?=\w)", " ", text)
    assert re.search(r"# .*\[linear, cosine, 1-sqrt\]\n    schedule: linear\n", text)
    assert re.search(r"# .*\[>= 0 and < 1\]\nlabel_smoothing: 0.1\n", text)
    assert re.search(r"\n  # search:\n? *#?   rule: bfgs: ", text)


SECTION: dict[type[StageConfig], str] = {StageOneConfig: "stage_1", StageTwoConfig: "stage_2"}


def in_schema(values: Any) -> bool:
    """Return whether the schema allows what YAML files and ``--set`` made of these values."""
    jsonschema = pytest.importorskip("jsonschema")
    plain = json.loads(json.dumps(values))
    return jsonschema.Draft202012Validator(configuration_schema()).is_valid(plain)


def test_an_editor_marks_no_shipped_recipe() -> None:
    recipes = sorted(CONFIGS.glob("*.yaml"))
    assert len(recipes) == 5
    for recipe in recipes:
        assert in_schema(yaml.safe_load(recipe.read_text())), recipe.name
        for stage in (StageOneConfig, StageTwoConfig):
            assert in_schema(yaml.safe_load(config_text(load_config(stage, recipe)))), recipe.name


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (StageOneConfig, {"stop": "averaged"}),
        (StageOneConfig, {"stop": None}),
        (StageOneConfig, {"stop": {"patience": 2}}),
        (StageTwoConfig, {"search": {"n_component": 8}}),
        (StageTwoConfig, {"method": "cooldown", "cooldown": {"factor": 1}}),
        (StageTwoConfig, {"epochs": "10%"}),
        (StageTwoConfig, {"epochs": 2, "data": {"batch_size": 3}}),
    ],
)
def test_an_editor_accepts_what_dimred_accepts(model: type[StageConfig], values: dict[str, Any]) -> None:
    model.checked(values)
    assert in_schema({SECTION[model]: values})


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
    assert not in_schema({SECTION[model]: values})


def test_the_schema_knows_every_key_and_no_other(tmp_path: Path) -> None:
    """An editor reads this schema and marks keys that are not in it."""
    file = tmp_path / "schema.json"
    dimred_here("init", file, "--schema", status=0)
    schema = json.loads(file.read_text())
    assert set(schema["properties"]) == {*StageConfig.model_fields, "stage_1", "stage_2"}
    stages = [schema["properties"][name] for name in ("stage_1", "stage_2")]
    assert [set(one["properties"]) for one in stages] == [
        {*StageOneConfig.model_fields} - {"stage_2"},
        {*StageTwoConfig.model_fields},
    ]
    for section in (schema, *stages, *schema["$defs"].values()):
        if "properties" in section:
            assert section["additionalProperties"] is False
            assert all("description" in key or "$ref" in str(key) for key in section["properties"].values())
