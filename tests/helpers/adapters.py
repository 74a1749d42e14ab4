"""LoRA adapters as PEFT saves them: a dense layer, an embedding, a convolution, and a head that is trained whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.checkpoint_files import as_float, draw, read_file, write_file
from tests.oracles import merge as oracle

HEAD = "base_model.model.head.weight"
CONFIG: dict[str, Any] = {
    "base_model_name_or_path": "org/base",
    "bias": "none",
    "init_lora_weights": True,
    "lora_alpha": 6,
    "lora_dropout": 0.1,
    "modules_to_save": ["head"],
    "peft_type": "LORA",
    "r": 4,
    "target_modules": ["dense", "embed"],
    "use_dora": False,
    "use_rslora": False,
}
LAYERS = ("dense", "embed", "conv")


def names_of(layer: str) -> tuple[str, str]:
    """Return the names of a layer's two factors, the tensors A and B."""
    start = f"base_model.model.{layer}.lora_"
    return (
        (f"{start}embedding_A", f"{start}embedding_B") if layer == "embed" else (f"{start}A.weight", f"{start}B.weight")
    )


def adapter(seed: int, dtype: type = np.float32, ranks: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Draw the tensors of an adapter by name; its layers have rank 4, except those whose rank is in ``ranks``."""
    tensors = {HEAD: draw((3, 9), dtype, 10 * seed)}
    shapes = {"dense": ((50,), (60,)), "embed": ((70,), (9,)), "conv": ((5, 3, 3), (8,))}
    for number, (layer, (inside, outside)) in enumerate(shapes.items(), start=1):
        a, b = names_of(layer)
        rank = (ranks or {}).get(layer, 4)
        tensors[a] = draw((rank, *inside), dtype, 10 * seed + number)
        tensors[b] = draw((*outside, rank, *([1, 1] if layer == "conv" else [])), dtype, 10 * seed + number + 5)
    return tensors


def write_adapter(folder: Path, tensors: Mapping[str, np.ndarray], **changes: object) -> Path:
    write_file(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changes, indent=2, sort_keys=True))
    return folder


def write_adapters(folder: Path, n: int, dtype: type = np.float32, **changes: object) -> list[dict[str, np.ndarray]]:
    """Write ``n`` adapters as ``checkpoint-100`` and so on, as a trainer leaves them, and return the tensors of each.

    The ``changes`` are made in the configuration of each.
    """
    written = [adapter(seed, dtype) for seed in range(n)]
    for number, tensors in enumerate(written, start=1):
        write_adapter(folder / f"checkpoint-{number}00", tensors, **changes)
    return written


def read_adapter(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the tensors of an adapter as floats, and its configuration."""
    config = json.loads((folder / "adapter_config.json").read_text())
    return {name: as_float(value) for name, value in read_file(folder / "adapter_model.safetensors").items()}, config


def deltas(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Compute what an adapter adds to each layer: layer -> matrix, by ``tests.oracles.merge.lora_delta``.

    Args:
        tensors: the adapter's tensors by name.
        config: its configuration, with the ranks and the alphas.
    """
    found = {}
    for layer in LAYERS:
        alpha = config.get("alpha_pattern", {}).get(f"^{layer}", config["lora_alpha"])
        assert len(tensors[names_of(layer)[0]]) == config.get("rank_pattern", {}).get(layer, config["r"])
        a, b = (as_float(tensors[name]) for name in names_of(layer))
        found[layer] = oracle.lora_delta(a, b, alpha, rslora=config["use_rslora"])
    return found
