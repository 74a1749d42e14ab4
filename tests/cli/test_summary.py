import json
from pathlib import Path

from tests.helpers.commands import dimred_here

TOKENS = """
from mindspore import nn, ops


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding, self.other = nn.Embedding(10, 8), nn.Embedding(10, 8)

    def construct(self, first, second):
        return ops.bmm(self.embedding(first), self.other(second).swapaxes(1, 2))
"""


def test_a_table_for_people_and_json_for_programs() -> None:
    table = dimred_here("summary", "resnet_small", "--classes", "10", status=0)
    lines = table.stdout.splitlines()
    assert lines[0].split() == ["layer", "kind", "input", "output", "parameters", "FLOPs"]
    assert lines[1].split() == ["stem.0", "Conv2d", "1x3x16x16", "1x8x16x16", "216", "110,592"]
    assert lines[-2].startswith("19,954 trainable parameters (0.1 MiB in float32)")
    result = json.loads(dimred_here("summary", "resnet_small", "--classes", "10", "--json").stdout)
    assert result["n_parameters"] == 19954
    assert result["function_flops"] == 0
    assert result["inputs"] == [{"shape": [1, 3, 16, 16], "type": "float32"}]
    assert lines[-1] == (
        f"{result['flops'] / 1e6:.3g} MFLOPs for an input of 1x3x16x16 ({result['flops'] / 2e6:.3g} MMACs)"
    )
    assert sum(layer["n_parameters"] for layer in result["layers"]) == 19954


def test_a_user_s_own_network(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from mindspore import nn\ndef build(n_classes):\n    return nn.Dense(7, n_classes)\n"
    )
    process = dimred_here("summary", "own:build", "--input", "1,7", "--classes", "2", cwd=tmp_path, status=0)
    assert "16 trainable parameters" in process.stdout
    assert "\n30 FLOPs for an input of 1x7 (15 MACs)\n" in process.stdout


def test_a_network_of_tokens_with_two_inputs(tmp_path: Path) -> None:
    (tmp_path / "tokens.py").write_text(TOKENS)
    inputs = ("--input", "int32:1,5", "--input", "int32:1,5")
    shown = dimred_here("summary", "tokens:Network", *inputs, cwd=tmp_path, status=0).stdout.splitlines()
    rows = [line.split() for line in shown[1:4]]
    assert rows[0] == ["embedding", "Embedding", "1x5", "1x5x8", "80", "0"]
    assert rows[2] == ["functions", "products", "outside", "layers", "0", "400"]
    assert shown[-1] == "0.4 kFLOPs for an input of 1x5 and 1x5 (0.2 kMACs)"


def test_an_input_of_another_form_is_refused(tmp_path: Path) -> None:
    for text, said in (
        ("1x7", "--input is '1x7'; give whole numbers above 0, such as 1,3,224,224"),
        ("text:1,7", "--input is 'text:1,7', with the type 'text'; allowed: float32, float16, int32"),
    ):
        assert said in dimred_here("summary", "resnet_small", "--input", text, cwd=tmp_path, status=2).stderr
