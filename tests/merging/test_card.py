"""The model card of an output folder."""

import os
import shlex
from pathlib import Path

import numpy as np
import yaml

import dimred
from tests.helpers import needs
from tests.helpers.adapters import write_adapters
from tests.helpers.checkpoint_files import BITS, write_run
from tests.helpers.commands import dimred_here as command


def read_card(folder: Path) -> tuple[dict, str]:
    """Return the metadata and the text of a card."""
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), text


def test_a_card_says_what_the_folder_was_made_from(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3, BITS, sharded=True)
    record = dimred.merge(tmp_path / "run", tmp_path / "avg", last=2, profile="0.25,0.75")
    front, text = read_card(tmp_path / "avg")
    assert front == {"tags": ["merge", "dimred"]}
    assert f"An average of 2 checkpoints of one training run, made by dimred {dimred.__version__} " in text
    assert "Profile: 0.25,0.75." in text
    for number, fraction in ((2, 0.25), (3, 0.75)):
        assert f"| {tmp_path / 'run' / f'checkpoint-{number}000'} | {number}000 | {fraction} |" in text
    assert f"BatchNorm: {record['batch_norm']}." in text
    assert record["command"] in text
    assert "README.input.md" not in text
    words = shlex.split(record["command"])
    assert words[:2] == ["dimred", "merge"]
    words[words.index(str(tmp_path / "avg"))] = str(tmp_path / "again")
    assert command(*words[1:]).returncode == 0  # the command does what it says
    for path in (tmp_path / "avg").glob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_a_card_has_the_scores_of_a_metric(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3, sharded=True)

    def score(tensors: dict[str, np.ndarray], split: str) -> list[float]:
        return tensors["fc.weight"][:4].mean(axis=1).tolist()

    record = dimred.merge(tmp_path / "run", tmp_path / "best", metric=score, maximize=True)
    _, text = read_card(tmp_path / "best")
    choice = next(row for row in record["table"] if row["kept"])
    cells = [f"{choice[split][0]:.4f} ± {choice[split][1]:.4f}" for split in ("search", "select", "test")]
    assert f"| * | {choice['kind']} | {choice['name']} | {' | '.join(cells)} |" in text
    assert f"Kept {record['kept']['name']}: {record['why']}. {record['evaluations']} evaluations; " in text
    assert "higher is better. The metric: `test_a_card_has_the_scores_of_a_metric.<locals>.score`" in text


def test_the_card_of_an_input_is_kept_apart_whatever_it_holds(tmp_path: Path) -> None:
    write_adapters(tmp_path / "run", 2)
    theirs = b"\xef\xbb\xbf---\nlicense: mit\nat: [\n---\n# x\xe9\n\nAccuracy 99 %.\n"
    (tmp_path / "run" / "checkpoint-200" / "README.md").write_bytes(theirs)
    dimred.merge(tmp_path / "run", tmp_path / "mean")
    assert (tmp_path / "mean" / "README.input.md").read_bytes() == theirs
    _, text = read_card(tmp_path / "mean")
    assert "99 %" not in text
    assert "[README.input.md](README.input.md) is the last input's card" in text
    assert "LoRA: the mean of 2 products B A, exact: rank 8, lora_alpha 6." in text


@needs.ANY_NAME
def test_a_path_that_is_no_text_stands_escaped_in_the_card(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"run\xe9")
    write_run(folder, 2, sharded=True)
    dimred.merge(folder, tmp_path / "avg")
    assert f"| {tmp_path}/run\\udce9/checkpoint-1000 | 1000 | 0.5 |" in read_card(tmp_path / "avg")[1]
