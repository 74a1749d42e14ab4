"""Average LoRA adapters: the mean of what they add to the network, s B A, is written as one adapter.

With s = alpha / r, or alpha / sqrt(r) for rsLoRA (Kalajdzievski, 2023, arXiv 2312.03732), the mean of N adapters is

    sum(c_i s B_i A_i) / sum(c_i) = s' [B_1 ... B_N] [f_1 A_1; ...; f_N A_N]

which is an adapter of rank N r. (The mean of the B times the mean of the A is a different matrix.) The common part of
the f_i goes into s' through the new alpha, so that equal coefficients leave every factor unchanged. For a smaller rank,
the largest singular values of the sum are kept; QR decompositions of both sides reduce it to N r x N r first.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dimred.checkpoints.stored_tensor import reading
from dimred.errors import CheckpointError, shown
from dimred.io.regular_file import read_regular
from dimred.merging.folder import ADAPTER_CONFIG
from dimred.merging.saved_network import SavedNetwork

# As PEFT, kohya, diffusers and MindFormers name the two factors of a product. A network's own module may be called
# lora, too, so a name counts as a factor only if its partner exists. LyCORIS has up to four factors, with other names.
_FACTOR = re.compile(r"((?<![a-z])lora\d*[._](?:embedding_)?)(down|up|a|b)(?![a-z\d])", re.IGNORECASE)
_PARTNERS = {"down": "up", "up": "down", "a": "b", "b": "a", "A": "B", "B": "A"}
_OF_LYCORIS = re.compile(r"(?<![a-z])(?:lokr|hada)_w[12]")
_OF_ADAPTER = re.compile(r"\blora_(?:embedding_)?(?:A|B|magnitude)")  # in a file that PEFT wrote
_A = re.compile(r"\blora_(embedding_)?A\b")
_SAME = (
    "r",
    "lora_alpha",
    "use_rslora",
    "base_model_name_or_path",
    "revision",
    "task_type",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "layer_replication",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "bias",
    "modules_to_save",
    "trainable_token_indices",
    "alora_invocation_tokens",
)
_SETS = ("target_modules", "exclude_modules", "modules_to_save", "layers_to_transform")  # their order means nothing
# With these, an adapter adds something other than s B A, or B and A are not what their shapes suggest.
_NOT_A_PRODUCT = (
    "use_dora",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "target_parameters",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
_INITIALISATIONS = (None, True, False, "gaussian", "eva", "orthogonal")  # the others change the base network


def adapter_config(checkpoint: SavedNetwork) -> dict[str, Any] | None:
    """Read the configuration beside an adapter's weights; None if there is none.

    Raises:
        CheckpointError: the configuration can't be read, or lacks a valid rank or alpha.
    """
    path = checkpoint.files[0].with_name(ADAPTER_CONFIG)
    if not path.is_file():
        return None
    with reading(path):
        content = read_regular(path)
    try:
        config = json.loads(content)
        if config["peft_type"] == "LORA":
            ranks, alphas = ((config.get(key) or {}).values() for key in ("rank_pattern", "alpha_pattern"))
            if min([config["r"], *ranks]) < 1 or not all(map(math.isfinite, (config["lora_alpha"], *alphas))):
                raise ValueError(f"r is {config['r']!r} and lora_alpha {config['lora_alpha']!r}")
            for pattern in config.get("alpha_pattern") or ():
                re.compile(pattern)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, re.error) as error:
        raise CheckpointError(
            f"{path} is not the configuration of an adapter ({type(error).__name__}: {error})"
        ) from None
    return config


def check_adapters(checkpoints: Sequence[SavedNetwork]) -> None:
    """Check that checkpoints are free of LoRA factors, or are adapters whose products can be averaged.

    Raises:
        CheckpointError: they can't be averaged; the message says why.
    """
    configs = [adapter_config(checkpoint) for checkpoint in checkpoints]
    for checkpoint, config in zip(checkpoints, configs, strict=True):
        factor = next((name for name in checkpoint.tensors if _is_factor(name, checkpoint)), None)
        if config is None and factor is not None:
            raise CheckpointError(
                f"{checkpoint.path} holds LoRA factors, such as {shown(factor)}, without the {ADAPTER_CONFIG} that "
                "gives their scale; the mean of factors is not the mean of their products: save the adapter with its "
                "configuration, or merge it into its network first"
            )
        if config is not None:
            _check_adapter(checkpoint, config)
    for checkpoint, config in zip(checkpoints, configs, strict=True):
        for key in _SAME:
            left, right = (_comparable(key, (each or {}).get(key)) for each in (config, configs[-1]))
            if left != right:
                raise CheckpointError(
                    f"{key} is {shown(left)} in {checkpoint.path} and {shown(right)} in {checkpoints[-1].path}; only "
                    "adapters that agree on it can be averaged: leave one out, or merge each into its network first"
                )


def _is_factor(name: str, checkpoint: SavedNetwork) -> bool:
    """Return whether an entry is a factor of a product, by its name and its partner's."""
    match = _FACTOR.search(name)
    if match is None:
        return _OF_LYCORIS.search(name) is not None
    return name[: match.start(2)] + _PARTNERS.get(match[2], "") + name[match.end(2) :] in checkpoint.tensors


def _check_adapter(checkpoint: SavedNetwork, config: dict[str, Any]) -> None:
    if config["peft_type"] != "LORA":
        wrong = f"peft_type is {shown(config['peft_type'])}; allowed: 'LORA'"
    elif key := next((key for key in _NOT_A_PRODUCT if config.get(key)), None):
        wrong = f"{key} is {shown(config[key])}, with which an adapter adds more than a product of two factors"
    elif (start := config.get("init_lora_weights")) not in _INITIALISATIONS:
        wrong = f"init_lora_weights is {shown(start)}, which changed the base network; let PEFT make it plain LoRA"
    elif checkpoint.files[0].suffix != ".safetensors":
        wrong = f"{checkpoint.files[0].name} is not a .safetensors file"
    else:
        pairs = factors_of(checkpoint)
        names = {*pairs, *pairs.values()}
        odd = next((name for name in checkpoint.tensors if _OF_ADAPTER.search(name) and name not in names), None)
        wrong = f"{shown(odd)} is not a factor with a partner of the same rank" if odd else "it has no factors"
        if not odd and pairs:
            return
    raise CheckpointError(f"{checkpoint.path} is an adapter that can't be averaged: {wrong}")


def _comparable(key: str, value: object) -> object:
    """Return a configuration's value in a form that can be compared: empty as None, a set as a sorted list.

    Patterns become pairs, because the first one that fits a module gives its rank or alpha.
    """
    if not value:
        return None
    if key in _SETS and isinstance(value, list):
        return sorted(value, key=str)
    return list(value.items()) if isinstance(value, dict) else value


def factors_of(checkpoint: SavedNetwork) -> dict[str, str]:
    """Map the name of each A, (r, ...), to the name of its B, (n, r) or (n, r, 1, 1)."""
    pairs = {}
    tensors = checkpoint.tensors
    for name in filter(_A.search, tensors):
        partner = _A.sub(r"lora_\1B", name)
        if partner in tensors and tensors[partner].is_float and tensors[name].is_float:
            a = tensors[name].shape
            b = tensors[partner].shape
            if len(a) > 1 and len(b) > 1 and 0 < a[0] == b[1] and set(b[2:]) <= {1}:
                pairs[name] = partner
    return pairs


class LowRankMean:
    """The mean of adapters as one adapter.

    Args:
        checkpoints: adapters that passed ``check_adapters``.
        coefficients: c, float64 (N,), at least 0 and not all 0; adapters with 0 are left out.
        largest_rank: largest rank of the result; None for no limit.

    Attributes:
        config: configuration of the result.
        shapes: name -> shape of each of its factors.
        lost_fraction: the norm that the limit cost, as a fraction of the norm of the mean update of all modules; 0
            until ``factors`` is exhausted.
    """

    def __init__(self, checkpoints: Sequence[SavedNetwork], coefficients: np.ndarray, largest_rank: int | None) -> None:
        self._terms = [
            (checkpoint, float(c)) for checkpoint, c in zip(checkpoints, coefficients, strict=True) if c != 0
        ]
        self._largest_rank = largest_rank
        self._pairs = factors_of(checkpoints[-1])
        tensors = checkpoints[-1].tensors
        before = adapter_config(checkpoints[-1]) or {}
        self._power = 0.5 if before.get("use_rslora") else 1.0
        self._largest = max(c for _, c in self._terms)
        self._growth = self._growth_of(before["r"])
        change = self._growth * self._largest / sum(c for _, c in self._terms)
        changes: dict[str, Any] = {"r": self.rank_of(before["r"]), "lora_alpha": _whole(before["lora_alpha"] * change)}
        for key, new in (("rank_pattern", self.rank_of), ("alpha_pattern", lambda alpha: _whole(alpha * change))):
            if before.get(key):
                changes[key] = {pattern: new(value) for pattern, value in before[key].items()}
        if any(before.get(key) != new for key, new in changes.items()):
            # PEFT's special initialisations don't allow every rank, and loading the factors replaces them anyway.
            changes["init_lora_weights"] = True
        self.config = before | changes
        self.lost_fraction = 0.0
        self.shapes: dict[str, tuple[int, ...]] = {}
        for a, b in self._pairs.items():
            rank = self.rank_of(tensors[a].shape[0])
            self.shapes[a] = (rank, *tensors[a].shape[1:])
            self.shapes[b] = (tensors[b].shape[0], rank, *tensors[b].shape[2:])

    def rank_of(self, rank: int) -> int:
        """Return the rank of the mean in a module whose adapters have rank ``rank``."""
        total = len(self._terms) * rank
        return total if self._largest_rank is None else min(total, self._largest_rank)

    def _growth_of(self, rank: int) -> float:
        """Return the ratio of the new divisor in s to the old: without a limit N, or sqrt(N) for rsLoRA."""
        return (self.rank_of(rank) / rank) ** self._power

    def _alpha_of(self, factor: str) -> float:
        """Return the alpha of a factor's module, as PEFT does: by the first fitting pattern, else ``lora_alpha``."""
        module = factor.partition(".lora_")[0].removeprefix("base_model.model.")
        patterns = self.config.get("alpha_pattern") or {}
        alphas = (alpha for key, alpha in patterns.items() if re.fullmatch(rf"(.*\.)?({key})", module))
        return float(next(alphas, self.config["lora_alpha"]))

    def factors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each factor, name and float64 values, module by module.

        Raises:
            CheckpointError: a file can't be read, or holds a number that is not finite.
        """
        norm_square = lost_square = 0.0
        for a, b in self._pairs.items():
            ups = []
            downs = []
            for checkpoint, c in self._terms:
                down, up = (_read(checkpoint, name) for name in (a, b))
                growth = self._growth_of(len(down))
                downs.append(down.reshape(len(down), -1) * (c * growth / (self._largest * self._growth)))
                ups.append(up.reshape(len(up), -1))
            up = np.concatenate(ups, axis=1)
            down = np.concatenate(downs)
            rank = self.shapes[a][0]
            scale_square = (self._alpha_of(a) / rank**self._power) ** 2
            if len(down) > rank:
                up, down, left_out = _truncated(up, down, rank)
                lost_square += scale_square * float(left_out @ left_out)
            if self._largest_rank is not None:  # otherwise nothing is lost
                norm_square += scale_square * float(np.sum((up.T @ up) * (down @ down.T)))
            yield from ((a, down), (b, up))
        self.lost_fraction = math.sqrt(lost_square / (norm_square + lost_square)) if lost_square else 0.0

    def __str__(self) -> str:
        """Describe the mean's rank, for the record."""
        n = len(self._terms)
        r = self.config["r"]
        percent = 100 * self.lost_fraction
        how = f"the largest singular values, without {percent:.2g} % of the norm" if percent else "exact"
        return f"the mean of {n} products B A, {how}: rank {r}, lora_alpha {self.config['lora_alpha']:g}"


def _read(checkpoint: SavedNetwork, name: str) -> np.ndarray:
    values = checkpoint.read(name).astype(np.float64)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{checkpoint.path}: {name!r} holds an infinite number or NaN; leave it out")
    return values


def _truncated(up: np.ndarray, down: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the factors of the matrix nearest to ``up down`` with a given rank, and the singular values left out.

    Args:
        up: (n, K).
        down: (K, m).
        rank: rank of the result, below K; if n or m is smaller, the factors are padded with zeros.
    """
    (left, upper) = np.linalg.qr(up)
    (right, lower) = np.linalg.qr(down.T)
    u, values, v = np.linalg.svd(upper @ lower.T, full_matrices=False)
    n_values = min(rank, len(values))
    root = np.sqrt(values[:n_values])
    new_up = np.zeros((len(up), rank))
    new_down = np.zeros((rank, down.shape[1]))
    new_up[:, :n_values] = left @ (u[:, :n_values] * root)
    new_down[:n_values] = (root[:, None] * v[:n_values]) @ right.T
    return new_up, new_down, values[rank:]


def _whole(number: float) -> float | int:
    """Return a whole number as an int, as configurations have it."""
    return int(number) if number == int(number) else number


def write_config(folder: Path, mean: LowRankMean) -> None:
    """Write the configuration of a mean of adapters, its keys in the order of the input's.

    Args:
        folder: the new adapter's folder, which holds a copy of the last input's configuration; it is kept if equal.
        mean: the mean.
    """
    path = folder / ADAPTER_CONFIG
    if mean.config != json.loads(read_regular(path)):
        path.write_text(json.dumps(mean.config, indent=2), encoding="utf-8")
