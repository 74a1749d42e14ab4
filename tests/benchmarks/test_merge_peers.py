"""Compare ``dimred merge`` with mergekit, torch's AveragedModel, ema-pytorch and PEFT on the same checkpoints.

    pytest -m peers -s tests/benchmarks/test_merge_peers.py

This makes an environment for them first (``tests/helpers/peers.py``). DIMRED_PEERS_LAYERS=14 takes Llamas of 245 M
weights and 6 GB of disk meanwhile; the default of 1 takes 78 M weights.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

import dimred
from tests.helpers.checkpoint_files import read_file
from tests.helpers.peers import Cost, measured, peers, program

pytestmark = [pytest.mark.peers, pytest.mark.timeout(3600)]

DIMRED = Path(sys.executable).with_name("dimred")
N = 10


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:  # pytest would keep gigabytes
        yield Path(made)


def show(title: str, rows: dict[str, Cost]) -> None:
    print(f"\n{title}\n{'':30} {'seconds':>8} {'own MB':>8}")
    for name, cost in rows.items():
        print(f"{name:30} {cost.seconds:8.1f} {cost.own_bytes / 1e6:8.0f}")


def test_sharded_llamas(folder: Path, capsys: pytest.CaptureFixture) -> None:
    program("write_llamas", folder / "run", N, os.environ.get("DIMRED_PEERS_LAYERS", "1"))
    models = [
        {"model": str(folder / "run" / f"checkpoint-{number}000"), "parameters": {"weight": 1}}
        for number in range(1, N + 1)
    ]
    recipe = {"merge_method": "linear", "models": models, "dtype": "float32", "out_dtype": "bfloat16"}
    (folder / "mergekit.yaml").write_text(yaml.safe_dump(recipe))
    rows = {
        "dimred merge": measured([DIMRED, "merge", folder / "run", "--out", folder / "ours"]),
        "mergekit linear": measured([peers() / "mergekit-yaml", folder / "mergekit.yaml", folder / "mergekit"]),
        "torch AveragedModel": program("averaged_llama", folder / "run", folder / "torch"),
    }
    with capsys.disabled():
        show(f"{N} sharded bfloat16 Llamas from the page cache, whole processes", rows)
    # mergekit rounds twice, and AveragedModel's float32 mean after each checkpoint, so that values near ties differ.
    for name, most in (("mergekit", 1e-5), ("torch", 1e-2)):
        program("compare_llamas", folder / "ours", folder / name, folder / "answer.json")
        answer = json.loads((folder / "answer.json").read_text())
        with capsys.disabled():
            print(name, answer)
        assert answer["finite"]
        assert answer["different"] <= most * answer["weights"]
    card = (folder / "ours" / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "transformers"


def test_batch_norm(folder: Path, capsys: pytest.CaptureFixture) -> None:
    program("train_with_batch_norm", folder)
    dimred.merge(sorted(folder.glob("epoch_*")), folder / "ours.safetensors")
    program("compare_with_batch_norm", folder, folder / "ours.safetensors", folder / "answer.json")
    answer = json.loads((folder / "answer.json").read_text())
    with capsys.disabled():
        print("\nlargest differences of statistics from AveragedModel's with update_bn, and of weights:", answer)
    assert answer["weights"] < 1e-6
    assert answer["after"] < 1e-5 < answer["before"]


def test_post_hoc_ema(folder: Path, capsys: pytest.CaptureFixture) -> None:
    size, steps, every = 5_000_000, 200, 10
    program("train_for_post_hoc", folder, size, steps, every)
    command = [DIMRED, "merge", folder / "snapshots", "--profile", "ema=0.1", "--out", folder / "ours.safetensors"]
    rows = {
        "dimred merge --profile ema=0.1": measured(command),
        "PostHocEMA": program("post_hoc", folder, size, folder / "theirs.safetensors"),
    }
    exact, errors = np.load(folder / "exact.npy"), {}
    for name in ("ours", "theirs"):
        errors[name] = float(np.linalg.norm(read_file(folder / f"{name}.safetensors")["weight"][0] - exact))
    relative = {name: error / float(np.linalg.norm(exact)) for name, error in errors.items()}
    with capsys.disabled():
        show(f"EMA of width 0.1 of {steps} steps, from {steps // every} snapshots of {size / 1e6:.0f} M weights", rows)
        print("distance from the average over every step, relative:", relative)
    assert max(relative.values()) < 0.1


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("initialisation", ["True", "gaussian"])
def test_adapters_of_peft(folder: Path, capsys: pytest.CaptureFixture, rslora: bool, initialisation: str) -> None:
    program("write_adapters", folder, rslora, initialisation)
    for percent in ("100,0,0", "25,25,50", "-50,50,100"):
        profile = ",".join(str(int(share) / 100) for share in percent.split(","))
        for name, rank in (("exact", None), ("rank 3", 3)):
            dimred.merge(folder / "run", folder / f"{name}={percent}", profile=profile, lora_rank=rank)
    program("compare_adapters", folder, folder / "answer.json")
    answer = json.loads((folder / "answer.json").read_text())
    with capsys.disabled():
        print("\nlargest differences from the mean of the networks, and the same of the mean of factors:", answer)
    assert len(answer) == 6
    for name, (ours, of_factors) in answer.items():
        alone = name.endswith("=100,0,0")
        assert ours < 1e-5 or name.startswith("rank 3")
        assert ours < of_factors or alone
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (folder / "exact=100,0,0" / name).read_bytes() == (folder / "run" / "checkpoint-1" / name).read_bytes()
