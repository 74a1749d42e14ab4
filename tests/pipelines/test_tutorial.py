"""The tutorials work as they stand: a user's network, a script of MindSpore's, and a folder of checkpoints merged."""

import json
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from safetensors import safe_open

from tests.helpers.commands import ON_PATH, REPOSITORY, run
from tests.studies import fashion_mnist

TUTORIAL, MERGE = (
    (REPOSITORY / "pipelines" / f"{name}.md").read_text(encoding="utf-8") for name in ("TUTORIAL", "TUTORIAL_MERGE")
)
OWN, WITH_FILES = TUTORIAL.split("## MNIST or CIFAR?")
ADAPTERS = ("adapter", "small-adapter")


def write_files(text: str, folder: Path) -> list[str]:
    """Write the files that a page shows, and return their names."""
    files = re.findall(r"`(\w+\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, content in files:
        (folder / name).write_text(content)
    return [name for name, _ in files]


def run_commands(text: str, folder: Path, timeout_seconds: float = 900) -> CompletedProcess[str]:
    """Run the page's commands in a folder."""
    commands = "".join(re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return run("bash", "-e", "-c", commands, cwd=folder, environment=ON_PATH, timeout_seconds=timeout_seconds, status=0)


@pytest.mark.slow
def test_a_strangers_network_goes_through_both_stages(tmp_path: Path) -> None:
    assert write_files(OWN, tmp_path) == ["my_data.py", "run.yaml"]
    done = run_commands(OWN, tmp_path)
    accuracies = re.findall(r"^\{'Accuracy': (0\.\d+)\}$", done.stdout, re.MULTILINE)
    first, search, cooldown = (float(accuracy) for accuracy in accuracies)
    assert first > 0.3
    assert search > first + 0.05
    assert cooldown > first + 0.1  # because it brings the rate to 0
    assert (tmp_path / "device0_stage_2" / "report" / "report.html").stat().st_size > 100_000
    passes = [float(found) for found in re.findall(r"^\| .*? \| (\d+\.\d) \|", done.stdout, re.MULTILINE)]
    assert passes[0] == 4.0
    assert passes == sorted(passes)  # the cost of choosing counts, and that of stage 2 on top of it
    assert len(set(passes)) == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not fashion_mnist.DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_lenet_is_trained_on_fashion_mnists_files_with_accumulation(tmp_path: Path) -> None:
    """``tests/stages/test_published_data.py`` does so with a few digits."""
    (tmp_path / "fashion-mnist").symlink_to(fashion_mnist.DEBIAN)
    done = run_commands(WITH_FILES, tmp_path, timeout_seconds=3600)
    assert "train: 60,000 images of 28 x 28 pixels in 10 classes\ntest: 10,000 images" in done.stdout
    first, last = (float(found) for found in re.findall(r"^\{'Accuracy': (0\.\d+)\}$", done.stdout, re.MULTILINE))
    assert first > 0.85
    assert last > first


@pytest.mark.slow
def test_a_script_of_mindspores_tutorial_keeps_its_stage_1_and_gets_another_stage_2(tmp_path: Path) -> None:
    section = TUTORIAL[TUTORIAL.index("## A script of MindSpore's tutorial, migrated") :]
    stage_1, stage_2 = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    [boost] = re.findall(r"^```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    compile(stage_1 + boost, "before", "exec")
    ends = "ends = net[4].weight.asnumpy().copy()\n"
    moved = "print('moved:', abs(net[4].weight.asnumpy() - ends).max() > 0)\n"
    again = "Model(step).train(1, data)\n"  # stage 1's dataset object
    done = run(sys.executable, "-c", stage_1 + ends + stage_2 + moved + again, cwd=tmp_path, status=1)
    assert "moved: True" in done.stdout
    assert "The dataset object had been used in other model" in done.stderr
    first, last = re.findall(r"^stage [12]: \{'acc': (0\.\d+)\}$", done.stdout, re.MULTILINE)
    assert float(first) > 0.8
    assert float(last) > float(first) - 0.02
    assert len([*(tmp_path / "checkpoint_pca").glob("*.ckpt")]) == 40
    assert (tmp_path / "pca_mat.npy").exists()


@pytest.mark.slow
def test_a_folder_of_checkpoints_becomes_one_better_network(tmp_path: Path) -> None:
    assert write_files(MERGE, tmp_path) == ["train.py", "score.py", "adapters.py"]
    done = run_commands(MERGE, tmp_path)
    for name in ("average", "best", "again"):
        with safe_open(tmp_path / f"{name}.safetensors", "numpy") as network:
            assert network.metadata() == {"format": "pt"}
            assert sorted(network.keys()) == ["0.weight", "2.weight"]
    ranks = {name: json.loads((tmp_path / name / "adapter_config.json").read_text())["r"] for name in ADAPTERS}
    assert ranks == {"adapter": 24, "small-adapter": 8}
    assert "tags: [merge, dimred]\n" in done.stdout
    rows = re.findall(r"^(\*| ) +\w+ +(.+?) +0\.\d+ .* ([\d.]+) ± [\d.]+ *$", done.stdout, re.MULTILINE)
    tested = {name: float(score) for _, name, score in rows}
    kept = next(name for mark, name, _ in rows if mark == "*")
    assert tested[kept] < 0.9 * tested["the snapshot of step 30"]
    told = re.search(r"last checkpoint has a loss of (0\.\d+), .* kept, (0\.\d+)\.", MERGE.replace("\n", " "))
    assert told
    assert [tested["the snapshot of step 30"], tested[kept]] == pytest.approx([*map(float, told.groups())], abs=0.05)
