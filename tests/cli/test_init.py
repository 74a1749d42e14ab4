"""``dimred init`` writes a configuration that explains every key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dimred.cli.init import commented_configuration, configuration_schema
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig, complete, config_file, config_text, load_config
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
            "2": "(default: null)\n  workers: 1\n",
        }
        assert lines[stage[-1]] in file.read_text()
        assert file.read_text().count("(default: ") < 20


@pytest.mark.parametrize("model", [StageOneConfig, StageTwoConfig])
def test_every_key_has_its_meaning_above_it(model: type[StageConfig]) -> None:
    lines = commented_configuration(model()).splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r" *(#|#  )?\w+:( |$)", line)]
    assert len(keys) > 20
    for number in keys:
        assert re.match(r" *#? *# \S+", lines[number - 1]), f"{lines[number]!r} has no docstring below it in config.py"


def test_values_and_ranges_allowed_are_named() -> None:
    text = re.sub(r"(?<=[\w,])\n# (?=\w)", " ", commented_configuration(StageTwoConfig()))
    assert re.search(r"# .*\[linear, cosine, 1-sqrt\]\n  schedule: linear\n", text)
    assert re.search(r"# .*\[>= 0 and < 1\]\n#label_smoothing: 0.1\n", text)
    assert re.search(r"\nsearch: null\n#   rule: bfgs: .*\n", text)


OTHER: dict[str, Any] = {
    "model": {"name": "resnet_small", "n_classes": 7, "initialisation": "kaiming"},
    "data": {
        "dataset": "a.b:c", "image_size": 8, "batch_size": 3, "augmentation": "none", "resize": False,
        "mean": [1, 2, 3], "std": [4, 5, 6], "sink": True, "damaged": "replace", "eval_split": "test",
    },
    "loss": "a.b:d", "metric": "a.b:e", "label_smoothing": 0.2, "precision": {"level": "O2"},
    "loss_scale": {"name": "dynamic"}, "clipping": {"norm": 2}, "ema": {"decay": 0.9},
    "reestimate_batch_norm": False, "reestimate_batches": 3,
}  # fmt: skip
"""A stage 1 that has another value than the default for each key that stage 2 takes over, but for accumulation."""


@pytest.mark.parametrize("other", [OTHER, {"accumulation": 4}], ids=["all but accumulation", "accumulation"])
@pytest.mark.parametrize("recipe", [None, "digits_stage"])
def test_a_stage_2_with_the_file_is_that_without_it(recipe: str | None, other: dict[str, Any], tmp_path: Path) -> None:
    """What it takes over from stage 1 is a comment in the file; or else each default would replace stage 1's value."""
    one, file = StageOneConfig.checked(other), tmp_path / "two.yaml"
    dimred_here("init", "2", file, *(["--config", recipe] if recipe else []), status=0)
    without = complete(load_config(StageTwoConfig, Path(recipe) if recipe else None), one)
    assert without.label_smoothing == one.label_smoothing
    assert complete(load_config(StageTwoConfig, file), one) == without


def test_a_key_taken_over_becomes_stage_2s_own_without_its_sign(tmp_path: Path) -> None:
    one, file = StageOneConfig.checked(OTHER), tmp_path / "two.yaml"
    text = commented_configuration(StageTwoConfig())
    for before, after in {
        "#ema:\n": "ema:\n", "#  decay: null": "  decay: 0.5", "  #batch_size: 256": "  batch_size: 5",
        "#label_smoothing: 0.1": "label_smoothing: 0.3",
    }.items():  # fmt: skip
        assert before in text
        text = text.replace(before, after, 1)
    file.write_text(text)
    two = complete(load_config(StageTwoConfig, file), one)
    assert (two.ema.decay, two.data.batch_size, two.label_smoothing) == (0.5, 5, 0.3)
    assert (two.data.image_size, two.clipping.norm) == (8, 2)


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
