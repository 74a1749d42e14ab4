"""``dimred init`` writes a configuration that explains every key."""

import json
import re
from pathlib import Path

import pytest

from dimred.cli.init import commented_configuration
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig, config_file, load_config
from tests.helpers.commands import dimred_here

STAGES = pytest.mark.parametrize(("stage", "model"), [("1", StageOneConfig), ("2", StageTwoConfig)])


@STAGES
@pytest.mark.parametrize("recipe", [None, "digits"])
def test_it_reads_back_to_the_defaults_or_to_a_recipe_and_names_other_defaults(
    stage: str, model: type[StageConfig], recipe: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "made.yaml"
    dimred_here("init", stage, file, *(["--config", recipe] if recipe else []), status=0)
    assert load_config(model, file) == (load_config(model, config_file(model, Path(recipe))) if recipe else model())
    if recipe:
        named = {"1": "# (default: null)\nstop:\n\n  # ", "2": "(default: 50)\nreestimate_batches: 18\n"}
        assert named[stage] in file.read_text()
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
    assert re.search(r"# .*\[linear, sqrt\]\n  schedule: linear\n", text)
    assert re.search(r"# .*\[>= 0 and < 1\]\nlabel_smoothing: 0.1\n", text)
    assert re.search(r"\nsearch: null\n#   rule: bfgs: .*\n", text)


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
