"""A PyTorch loop keeps snapshots with the base install; run ``-m torch`` where PyTorch is installed."""

from pathlib import Path

import numpy as np
import pytest

import dimred


@pytest.mark.torch
def test_a_pytorch_loop_keeps_snapshots_and_loads_their_mean(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    inputs = torch.randn(32, 4)
    series, history = dimred.CheckpointSeries.create(tmp_path / "snapshots", keep=3), []
    for step in range(1, 6):
        optimizer.zero_grad()
        (network(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        series.append({name: weight.detach() for name, weight in network.named_parameters()}, step=step, epoch=1)
        history.append({name: weight.detach().numpy().copy() for name, weight in network.named_parameters()})
    assert not np.array_equal(history[-1]["0.weight"], history[-2]["0.weight"])
    dimred.merge([series.directory], tmp_path / "mean.safetensors")
    mean = load_file(tmp_path / "mean.safetensors")
    network.load_state_dict(mean)
    for name, weight in mean.items():
        np.testing.assert_allclose(weight.numpy(), np.mean([one[name] for one in history[-3:]], axis=0), rtol=1e-6)
