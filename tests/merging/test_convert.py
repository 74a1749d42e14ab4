"""``dimred convert``: one file in, one out, by ``weights_only=True``; run ``-m torch`` where PyTorch is installed."""

import os
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.cli.options import options_in_errors
from dimred.errors import CheckpointError, ConfigError, DimredError
from dimred.merging.convert import convert
from tests.helpers.checkpoint_files import read_file
from tests.helpers.commands import dimred_here

pytestmark = pytest.mark.torch


def network(seed: int):
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def save(path: Path, content: object) -> Path:
    import torch

    torch.save(content, path)
    return path


def test_trainers_files_are_converted_and_their_mean_loads(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    for epoch in (9, 10):
        net = network(epoch)
        optimizer = torch.optim.Adam(net.parameters())
        net(torch.ones(3, 5)).sum().backward()
        optimizer.step()
        content = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        path = save(tmp_path / f"snapshot.ep.{epoch}", content)  # as ESPnet names them
        process = dimred_here("convert", path, status=0)
        assert process.stdout == f"{path}.safetensors: 9 tensors, 51 numbers\n"
        loaded = load_file(f"{path}.safetensors")
        assert loaded.keys() == net.state_dict().keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in net.state_dict().items())
    record = dimred.merge(f"{tmp_path}/*.safetensors", tmp_path / "mean.safetensors")
    assert [one["step"] for one in record["checkpoints"]] == [9, 10]
    network(0).load_state_dict(load_file(tmp_path / "mean.safetensors"))


def test_what_exists_is_refused_also_under_another_key(tmp_path: Path) -> None:
    state = network(1).state_dict()
    path = save(tmp_path / "n.pt", {"model": state, "state_dict_ema": {name: one + 1 for name, one in state.items()}})
    several = r"several sets of weights: 'model' \(9 tensors, .*'state_dict_ema' .*key=model$"
    with pytest.raises(CheckpointError, match=several):
        convert(path)
    first = Path(convert(path, keys=["model"]).out).read_bytes()
    for keys in (["model"], ["state_dict_ema"]):
        with pytest.raises(ConfigError, match=r"out is .*n\.safetensors', which exists already; name another"):
            convert(path, keys=keys)
    assert (tmp_path / "n.safetensors").read_bytes() == first
    convert(path, keys=["state_dict_ema"], out=tmp_path / "ema.safetensors")
    np.testing.assert_array_equal(read_file(tmp_path / "ema.safetensors")["0.bias"], state["0.bias"].numpy() + 1)


def test_two_keys_of_one_network_are_written_together(tmp_path: Path) -> None:
    state, generator = network(1).state_dict(), {"weight": network(2).state_dict()["0.weight"]}
    path = save(tmp_path / "n.pt", {"model": {"net": state}, "generator": generator})
    process = dimred_here("convert", path, "--key", "model.net", "--key", "generator", status=0)
    assert process.stdout.endswith(": 10 tensors of model.net and generator, 71 numbers\n")
    arrays = read_file(tmp_path / "n.safetensors")
    assert {*arrays} == {f"model.net.{name}" for name in state} | {"generator.weight"}
    with pytest.raises(CheckpointError, match=r"^--key is 'gen', which has no weights"), options_in_errors("key"):
        convert(path, keys=["gen"], out=tmp_path / "x.safetensors")


def test_ties_views_and_half_precision_keep_their_values(tmp_path: Path) -> None:
    import torch

    values = torch.arange(6.0).reshape(2, 3)
    tensors = {"a": values, "tied": values, "neg": torch._neg_view(values), "t": values.T, "half": values.bfloat16()}
    arrays = read_file(Path(convert(save(tmp_path / "n.pth.tar", tensors)).out))
    np.testing.assert_array_equal(arrays["tied"], values.numpy())
    np.testing.assert_array_equal(arrays["neg"], -values.numpy())
    np.testing.assert_array_equal(arrays["t"], values.numpy().T)
    assert (tmp_path / "n.safetensors").exists()


def test_what_needs_more_than_weights_is_refused_and_the_command_named_makes_a_file_that_is_converted(
    tmp_path: Path,
) -> None:
    import torch

    path = save(tmp_path / "it's.pt", {"KEY": network(1).state_dict(), "args": Namespace(lr=0.1), "net": network(2)})
    with pytest.raises(CheckpointError, match=r"can't be read by PyTorch with weights_only=True \(") as error:
        convert(path)
    _, *words = shlex.split(str(error.value).partition("weights alone: ")[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, *words], check=True, cwd=tmp_path, timeout=120, env=environment)
    assert convert(tmp_path / "weights.pt").n_tensors == 9
    (tmp_path / "cut.pt").write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match=r"cut\.pt can't be read"):
        convert(tmp_path / "cut.pt")
    with pytest.raises(CheckpointError, match=r"gone\.pt does not exist"):
        convert(tmp_path / "gone.pt")
    with pytest.raises(CheckpointError, match="has no mapping from names to arrays of floats"):
        convert(save(tmp_path / "optimizer.pt", torch.optim.Adam(network(1).parameters()).state_dict()))
    with pytest.raises(CheckpointError, match="'w' has the type no values, which can't be averaged"):
        convert(save(tmp_path / "meta.pt", {"w": torch.empty(2, 3, device="meta")}))
    with pytest.raises(ConfigError, match=r"must end in \.safetensors"):
        convert(path, out=tmp_path / "x.ckpt")


def test_without_pytorch_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DimredError, match="needs PyTorch, which is not installed"):
        convert(tmp_path / "n.pt")
