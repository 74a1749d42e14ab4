"""Average checkpoints with other libraries, in the environment of ``tests.helpers.peers``.

Usage: python merge_peers.py FUNCTION ARGUMENTS... The environment has PyTorch and no dimred.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

ADAPTERS = 3


def write_llamas(folder: str, n: str, layers: str) -> None:
    """Write sharded bfloat16 Llamas; 14 layers have 245 M weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=int(layers), vocab_size=32000)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    for number in range(1, int(n) + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        model.save_pretrained(Path(folder, f"checkpoint-{number}000"), max_shard_size="200MB")


def averaged_llama(folder: str, out: str) -> None:
    """Average all checkpoints by AveragedModel, in float32."""
    from transformers import LlamaForCausalLM

    averaged = None
    for path in sorted(Path(folder).iterdir(), key=lambda path: int(path.name.partition("-")[2])):
        model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
        averaged = averaged or AveragedModel(model)
        averaged.update_parameters(model)
    assert averaged
    averaged.module.to(torch.bfloat16).save_pretrained(out, max_shard_size="200MB")


def compare_llamas(ours: str, theirs: str, answer: str) -> None:
    """Count the weights that differ, tell the largest difference, and run ours in transformers."""
    from transformers import LlamaForCausalLM

    one, other = (LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16).state_dict() for path in (ours, theirs))
    different = sum(int((one[name] != other[name]).sum()) for name in one)
    largest = max(float((one[name].float() - other[name].float()).abs().max()) for name in one)
    found = {"weights": sum(value.numel() for value in one.values()), "different": different, "largest": largest}
    with torch.no_grad():
        logits = LlamaForCausalLM.from_pretrained(ours)(torch.arange(8)[None]).logits
    Path(answer).write_text(json.dumps(found | {"finite": bool(logits.isfinite().all())}))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, 10),
    )


def _batches() -> list[torch.Tensor]:
    return list(torch.randn(20, 32, 3, 12, 12, generator=torch.Generator().manual_seed(1)))


def train_with_batch_norm(folder: str) -> None:
    """Save ten checkpoints, and what AveragedModel with update_bn makes of the same networks."""
    torch.manual_seed(0)
    model = _convolutional()
    averaged, optimizer = AveragedModel(model), torch.optim.SGD(model.parameters(), 0.05)
    for number in range(1, 11):
        for batch in _batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), batch.flatten(1)[:, :10].argmax(1)).backward()
            optimizer.step()
        averaged.update_parameters(model)
        save_file(model.state_dict(), Path(folder, f"epoch_{number}.safetensors"), {"format": "pt"})
    update_bn(_batches(), averaged)
    save_file(averaged.module.state_dict(), Path(folder, "averaged.safetensors"))


def compare_with_batch_norm(folder: str, ours: str, answer: str) -> None:
    """Compare update_bn on dimred's average, as the tutorial says, with AveragedModel and update_bn."""
    model, theirs = _convolutional(), load_file(Path(folder, "averaged.safetensors"))
    model.load_state_dict(load_file(ours))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    update_bn(_batches(), model)
    found = {}
    for what, state in (("before", before), ("after", model.state_dict())):
        names = [name for name in state if name.endswith(("running_mean", "running_var"))]
        found[what] = max(float((state[name] - theirs[name]).abs().max()) for name in names)
    found["weights"] = max(float((model.state_dict()[name] - theirs[name]).abs().max()) for name in theirs)
    Path(answer).write_text(json.dumps(found))


def train_for_post_hoc(folder: str, size: str, steps: str, every: str) -> None:
    """Save snapshots of a noisy descent, PostHocEMA's own checkpoints, and the exact EMA of every step in float64."""
    from ema_pytorch import PostHocEMA

    torch.manual_seed(0)
    model = nn.Linear(int(size), 1, bias=False)
    ema = PostHocEMA(
        model,
        sigma_rels=(0.05, 0.28),
        update_every=1,
        checkpoint_every_num_steps=int(every),
        checkpoint_dtype=torch.float32,
        checkpoint_folder=str(Path(folder, "ema")),
    )
    optimum, exact = torch.randn(int(size)), np.zeros(int(size))
    exponent = np.roots([1, 7, 16 - 0.1**-2, 12 - 0.1**-2]).real.max()
    Path(folder, "snapshots").mkdir()
    for step in range(1, int(steps) + 1):
        with torch.no_grad():
            model.weight += 0.02 * (optimum - model.weight) + 0.05 * torch.randn_like(model.weight)
        ema.update()
        beta = (1 - 1 / step) ** (exponent + 1)
        exact = beta * exact + (1 - beta) * model.weight.detach().numpy()[0].astype(np.float64)
        if step % int(every) == 0:
            save_file(model.state_dict(), Path(folder, "snapshots", f"step_{step}.safetensors"), {"format": "pt"})
    np.save(Path(folder, "exact.npy"), exact)


def post_hoc(folder: str, size: str, out: str) -> None:
    """Make the average of width 0.1 from PostHocEMA's checkpoints, in a later process."""
    from ema_pytorch import PostHocEMA

    model = nn.Linear(int(size), 1, bias=False)
    ema = PostHocEMA(model, sigma_rels=(0.05, 0.28), update_every=1, checkpoint_folder=str(Path(folder, "ema")))
    found = ema.synthesize_ema_model(sigma_rel=0.1)
    save_file(found.ema_model.state_dict(), out)


class _Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.dense = nn.Embedding(20, 16), nn.Conv2d(1, 8, 3), nn.Linear(8 * 3 * 14, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.dense(self.conv(self.embed(words)[:, None]).flatten(1)))


def write_adapters(folder: str, rslora: str, initialisation: str) -> None:
    """Write PEFT adapters with everything that a merge must respect, and factors as after training."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = _Small()
    save_file(base.state_dict(), Path(folder, "base.safetensors"))
    for number in range(1, ADAPTERS + 1):
        torch.manual_seed(number)
        network = _Small()
        network.load_state_dict(load_file(Path(folder, "base.safetensors")))
        config = LoraConfig(
            r=4,
            lora_alpha=6,
            target_modules=["embed", "conv", "dense"],
            modules_to_save=["head"],
            bias="lora_only",
            use_rslora=rslora == "True",
            rank_pattern={"embed": 2},
            alpha_pattern={"conv": 5},
            init_lora_weights=True if initialisation == "True" else initialisation,
        )
        adapted = get_peft_model(network, config)
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        adapted.save_pretrained(Path(folder, "run", f"checkpoint-{number}"))


def compare_adapters(folder: str, answer: str) -> None:
    """Compare what dimred's adapters give in PEFT with the mean of what each input gives.

    The folder has them as ``NAME=PERCENT``. The mean of the factors, for which PEFT has no name, is compared too.
    """
    from peft import PeftModel

    def load(path: Path) -> dict[str, torch.Tensor]:
        network = _Small()
        network.load_state_dict(load_file(Path(folder, "base.safetensors")))
        return PeftModel.from_pretrained(network, str(path)).merge_and_unload().state_dict()

    def mean(tensors: list[dict[str, torch.Tensor]], shares: list[float]) -> dict[str, torch.Tensor]:
        pairs = list(zip(shares, tensors, strict=True))
        return {name: sum(c * one[name].double() for c, one in pairs).float().contiguous() for name in tensors[0]}

    def largest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
        return max(float((one[name] - other[name]).abs().max()) for name in one)

    paths = [Path(folder, "run", f"checkpoint-{number}") for number in range(1, ADAPTERS + 1)]
    networks, factors = (
        [load(path) for path in paths],
        [load_file(path / "adapter_model.safetensors") for path in paths],
    )
    naive = Path(folder, "naive")
    naive.mkdir()
    (naive / "adapter_config.json").write_bytes((paths[0] / "adapter_config.json").read_bytes())
    found = {}
    for out in sorted(Path(folder).glob("*=*/")):
        shares = [int(part) / 100 for part in out.name.partition("=")[2].split(",")]
        save_file(mean(factors, shares), naive / "adapter_model.safetensors", {"format": "pt"})
        wanted = mean(networks, shares)
        found[out.name] = [largest(load(out), wanted), largest(load(naive), wanted)]
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
