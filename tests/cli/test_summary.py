import json
from pathlib import Path

from tests.helpers.commands import dimred_here


def test_a_table_for_people_and_json_for_programs() -> None:
    table = dimred_here("summary", "resnet_small", "--classes", "10", status=0)
    lines = table.stdout.splitlines()
    assert lines[0].split() == ["layer", "kind", "input", "output", "parameters", "FLOPs"]
    assert lines[1].split() == ["stem.0", "Conv2d", "1x3x16x16", "1x8x16x16", "216", "110,592"]
    assert lines[-2].startswith("19,954 parameters that train (0.1 MiB in float32)")
    result = json.loads(dimred_here("summary", "resnet_small", "--classes", "10", "--json").stdout)
    assert result["n_parameters"] == 19954
    assert f"{result['flops'] / 1e9:.3f} GFLOPs" in lines[-1]
    assert sum(layer["n_parameters"] for layer in result["layers"]) == 19954


def test_a_user_s_own_network(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from mindspore import nn\ndef build(n_classes):\n    return nn.Dense(7, n_classes)\n"
    )
    process = dimred_here("summary", "own:build", "--input-shape", "1,7", "--classes", "2", cwd=tmp_path, status=0)
    assert "16 parameters" in process.stdout
